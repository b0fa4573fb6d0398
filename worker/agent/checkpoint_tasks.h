// Carries out what people have asked for on checkpoints, one task after the other: to verify one,
// and to export one as a Hugging Face directory. Shards that are not here are read from, or for an
// export brought from, the workers that have them. An export is a process (nibble-export): the
// memory that it takes is its own.
//
// A verification fails with `damaged` only where some shard has no copy that is right; copies that
// are damaged beside a good one are named.
//
// Ownership: borrows what Options names; owns a thread. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_CHECKPOINT_TASKS_H_
#define NIBBLE_WORKER_AGENT_CHECKPOINT_TASKS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_desk.h"
#include "worker/agent/damage_reports.h"
#include "worker/agent/process_supervisor.h"
#include "worker/agent/shard_fetcher.h"

namespace nibble {

class CheckpointTasks {
 public:
  struct Options {
    CheckpointDesk* desk = nullptr;
    ShardFetcher* fetcher = nullptr;
    DamageReports* damage = nullptr;
    std::string worker;       // this one's name
    std::string own_address;  // not to be asked
    ProcessSupervisor* supervisor = nullptr;
    std::string exporter;           // path of nibble-export
    std::string jobs_directory;     // absolute
    std::function<void()> changed;  // one has ended
  };
  explicit CheckpointTasks(Options options);
  // What is under way is given up.
  ~CheckpointTasks();
  CheckpointTasks(const CheckpointTasks&) = delete;
  CheckpointTasks& operator=(const CheckpointTasks&) = delete;

  // Every task that is asked for. What has ended is told until it is no longer asked for.
  void Want(const std::vector<v1::DesiredTask>& tasks);
  std::vector<v1::TaskReport> Reports() const;

 private:
  void Run();
  v1::TaskReport CarryOut(const v1::DesiredTask& task);
  void Verify(const v1::DesiredTask& task, v1::TaskReport& report);
  // Reads the copy that is here; one that is damaged is reported.
  absl::Status VerifyHere(const v1::DesiredReplica& shard, int64_t& chunks);
  // Of all shards that are here; whether any is damaged.
  bool FindDamageHere(const v1::DesiredTask& task);
  // What was read; DataLoss where no copy is right.
  absl::Status VerifyShard(const v1::DesiredReplica& shard, int64_t& chunks,
                           std::vector<std::string>& notes);
  absl::StatusOr<std::string> Export(const v1::DesiredTask& task);
  absl::StatusOr<ProcessExit> RunExporter(const v1::DesiredTask& task);

  const Options options_;
  Cancellation cancellation_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool closing_ = false;
  std::deque<v1::DesiredTask> to_do_;
  std::set<std::string> known_;                    // asked for, by key
  std::map<std::string, v1::TaskReport> reports_;  // of those that have ended
  std::thread thread_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_CHECKPOINT_TASKS_H_
