// Fetches replicas of shards from other workers, or verifies them in place. Every byte is checked:
// the manifest against the checksum that the coordinator knows, each piece against its own, and
// each chunk against the manifest.
//
// Sources are tried one after the other. All users together run one transfer per source at a time,
// so that replication does not crowd out what the source's ranks write.
//
// Ownership: borrows the registry. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_SHARD_FETCHER_H_
#define NIBBLE_WORKER_AGENT_SHARD_FETCHER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_registry.h"
#include "worker/agent/coordinator_link.h"
#include "worker/agent/peer_server.h"

namespace nibble {

// Lets another thread cancel work.
// Thread-safety: all methods from any thread.
class Cancellation {
 public:
  // Ends one wait of the work, such as a call or the wait for a turn, at the cancellation; at once
  // if that was before. One at a time.
  class Scope {
   public:
    // `end` is called under the cancellation's lock, so that what it refers to still exists: it
    // neither waits nor calls the cancellation, and the caller holds no lock that it takes.
    Scope(Cancellation& cancellation, std::function<void()> end);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Cancellation& cancellation_;
  };

  void Cancel();
  bool cancelled() const;
  // False if it was cancelled before the time was over.
  bool Sleep(std::chrono::milliseconds time);

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> end_ ABSL_GUARDED_BY(mutex_);  // of the scope; may be null
};

class ShardFetcher {
 public:
  struct Options {
    LinkSecurity security;
    CheckpointRegistry* registry = nullptr;
    // Opens the job's store: CheckpointRegistry::OpenJob with the job's directory.
    std::function<absl::Status(const std::string& job, const StoreIdentity& identity)> open_job;
    std::function<void(const std::string&)> log;  // a line for people; may be null
    // Receives every damaged copy that is found; may be null.
    DamageReports* damage = nullptr;
    // Called after each Fetch; may be null.
    std::function<void(double seconds, int64_t bytes, const absl::Status& status)> fetched;
  };
  explicit ShardFetcher(Options options);

  // Fetches a replica unless it is here; `input` as in CheckpointRegistry::AddReplica. DataLoss,
  // naming the sources, if one has damaged bytes and the others have damaged bytes or no such
  // shard; Unavailable if none has the shard or one failed otherwise; Cancelled; the disk's error,
  // ResourceExhausted if it is full. `progress` receives the number of bytes of each piece.
  absl::Status Fetch(const v1::DesiredReplica& shard, bool input, Cancellation& cancellation,
                     absl::FunctionRef<void(int64_t bytes)> progress);

  // Reads every byte of a shard at its source, compares it with the manifest's checksums, and
  // stores nothing. Errors as Fetch; damaged copies
  // beside an intact one are named in `notes`.
  absl::Status Verify(const v1::DesiredReplica& shard, Cancellation& cancellation,
                      std::vector<std::string>& notes);

 private:
  class SourceTurn;
  struct Described;
  struct Source;
  using TakeBytes = absl::FunctionRef<absl::Status(const std::string& bytes)>;

  absl::Status TrySources(const v1::DesiredReplica& shard, Cancellation& cancellation,
                          std::vector<std::string>& notes,
                          absl::FunctionRef<absl::Status(Source& source)> attempt);
  absl::StatusOr<Described> Describe(Source& source, const v1::DesiredReplica& shard,
                                     Cancellation& cancellation);
  absl::Status Read(Source& source, const v1::DesiredReplica& shard, int64_t bytes,
                    Cancellation& cancellation, TakeBytes take);
  absl::Status Copy(Source& source, const v1::DesiredReplica& shard, bool input,
                    Cancellation& cancellation, absl::FunctionRef<void(int64_t bytes)> progress);

  const Options options_;
  Mutex mutex_;
  CondVar free_;
  std::set<std::string> busy_ ABSL_GUARDED_BY(mutex_);  // sources
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_SHARD_FETCHER_H_
