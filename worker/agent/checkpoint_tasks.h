// The coordinator's orders about checkpoints, carried out in the background.
//
// CheckpointTasks verifies checkpoints and exports them as Hugging Face directories, one task after
// the other, and uploads them to object storage (checkpoint_upload.h) beside that. Shards that are
// not here are read from, or for an export or upload fetched from, the workers that have them. An
// export runs in its own process (nibble-export), so that its memory is not the daemon's. A
// verification fails with `damaged` only if some shard has no intact copy; damaged copies beside an
// intact one are named. An upload that is no longer wanted is cancelled: another worker may make
// it.
//
// ReplicaKeeper fetches the replicas that this worker is to store, one transfer at a time. A failed
// transfer is tried again after growing waits; one that is no longer wanted is cancelled.
//
// Ownership: both borrow what their Options name and own a thread. Thread-safety: all methods from
// any thread.
#ifndef NIBBLE_WORKER_AGENT_CHECKPOINT_TASKS_H_
#define NIBBLE_WORKER_AGENT_CHECKPOINT_TASKS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/backoff.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/allowed_roots.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/shard_fetcher.h"
#include "worker/agent/task_thread.h"

namespace nibble {

class CheckpointTasks {
 public:
  struct Options {
    CheckpointRegistry* registry = nullptr;
    ShardFetcher* fetcher = nullptr;
    DamageReports* damage = nullptr;
    std::string worker;       // this one's name
    std::string own_address;  // never used as a source
    ProcessSupervisor* supervisor = nullptr;
    std::string exporter;           // path of nibble-export
    std::string jobs_directory;     // absolute
    AllowedRoots roots;             // of the destinations of exports
    std::function<void()> changed;  // a task has ended
  };
  explicit CheckpointTasks(Options options);
  // Cancels the running task.
  ~CheckpointTasks();
  CheckpointTasks(const CheckpointTasks&) = delete;
  CheckpointTasks& operator=(const CheckpointTasks&) = delete;

  // All tasks that are wanted now. A finished task is reported until it is no longer wanted.
  void Want(const std::vector<v1::DesiredTask>& tasks);
  std::vector<v1::TaskReport> Reports() const;

 private:
  void Run(const v1::DesiredTask& task);
  // Without a state: it was cancelled.
  v1::TaskReport CarryOut(const v1::DesiredTask& task);
  void Verify(const v1::DesiredTask& task, v1::TaskReport& report);
  // Reads the copy here; a damaged one is reported.
  absl::Status VerifyHere(const v1::DesiredReplica& shard, int64_t& chunks);
  // Whether any of the task's shards here is damaged.
  bool FindDamageHere(const v1::DesiredTask& task);
  // `chunks`: the number read. DataLoss if no copy is intact.
  absl::Status VerifyShard(const v1::DesiredReplica& shard, int64_t& chunks,
                           std::vector<std::string>& notes);
  // Fetches the shards that are not here.
  absl::Status Gather(const v1::DesiredTask& task);
  absl::StatusOr<std::string> Export(const v1::DesiredTask& task);
  absl::StatusOr<std::string> Upload(const v1::DesiredTask& task);
  absl::StatusOr<ProcessExit> RunExporter(const v1::DesiredTask& task);

  const Options options_;
  Cancellation cancellation_;
  mutable Mutex mutex_;
  std::set<std::string> known_ ABSL_GUARDED_BY(mutex_);                    // wanted, by key
  std::map<std::string, v1::TaskReport> reports_ ABSL_GUARDED_BY(mutex_);  // of ended tasks
  std::string exporter_ ABSL_GUARDED_BY(mutex_);  // name of its process; empty: none was started
  TaskThread thread_;
  TaskThread uploads_;  // may wait for a network for very long
};

class ReplicaKeeper {
 public:
  struct Options {
    CheckpointRegistry* registry = nullptr;
    ShardFetcher* fetcher = nullptr;
    Backoff::Options backoff;
    std::function<void(const std::string&)> log;  // a line for people; may be null
  };
  explicit ReplicaKeeper(Options options);
  ~ReplicaKeeper();
  ReplicaKeeper(const ReplicaKeeper&) = delete;
  ReplicaKeeper& operator=(const ReplicaKeeper&) = delete;

  // All replicas that are wanted now, the most urgent first.
  void Want(const std::vector<v1::DesiredReplica>& replicas);

 private:
  using Clock = std::chrono::steady_clock;
  struct Wanted {
    v1::DesiredReplica replica;
    size_t place = 0;  // among those wanted
    Clock::time_point not_before;
    Backoff backoff;
  };

  void Run();
  // The most urgent of those that are due, else the one due first; null: none is wanted.
  const Wanted* Next() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  Mutex mutex_;
  CondVar changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, Wanted> wanted_ ABSL_GUARDED_BY(mutex_);  // by key of the shard
  std::string fetching_ ABSL_GUARDED_BY(mutex_);                  // key
  std::shared_ptr<Cancellation> cancellation_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_CHECKPOINT_TASKS_H_
