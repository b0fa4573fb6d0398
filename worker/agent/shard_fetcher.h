// Brings copies of shards from other workers, or reads them to see whether they are right. Every
// byte is checked: the manifest against the checksum that the coordinator knows, each piece against
// its own, and each chunk against the manifest.
//
// Sources are tried one after the other; of one source one transfer is read at a time, whoever
// asks, so that copies never crowd out what the source's ranks write.
//
// Ownership: borrows the desk. Thread-safety: all methods from any thread.
#ifndef NIBBLE_WORKER_AGENT_SHARD_FETCHER_H_
#define NIBBLE_WORKER_AGENT_SHARD_FETCHER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/shard_store.grpc.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "worker/agent/checkpoint_desk.h"
#include "worker/agent/damage_reports.h"
#include "worker/agent/link_security.h"

namespace nibble {

// Work that may be called off from another thread.
// Thread-safety: all methods from any thread.
class Cancellation {
 public:
  void Cancel();
  bool cancelled() const;
  // False where it is called off before the time is over.
  bool Sleep(std::chrono::milliseconds time);
  // A call that is cancelled together with it; null: none any more.
  void Attach(grpc::ClientContext* call);

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool cancelled_ = false;
  grpc::ClientContext* call_ = nullptr;
};

class ShardFetcher {
 public:
  struct Options {
    LinkSecurity security;
    CheckpointDesk* desk = nullptr;
    // Makes room for a job's checkpoints: CheckpointDesk::OpenJob, where that is for the job.
    std::function<absl::Status(const std::string& job, const StoreIdentity& identity)> open_job;
    std::function<void(const std::string&)> log;  // a line for people; may be null
    // Is told of every damaged copy that is met; may be null.
    DamageReports* damage = nullptr;
    // A Fetch is over; may be null.
    std::function<void(double seconds, int64_t bytes, const absl::Status& status)> fetched;
  };
  explicit ShardFetcher(Options options);

  // Sees that a copy is here; `input` as in CheckpointDesk::TakeCopy. DataLoss where every source
  // that answered has damaged bytes, naming them; Unavailable where none did; Cancelled; what the
  // disk says, ResourceExhausted where it is full. `bytes` is told what has come.
  absl::Status Fetch(const v1::DesiredReplica& shard, bool input, Cancellation& cancellation,
                     absl::FunctionRef<void(int64_t bytes)> progress);

  // Reads every byte of a shard where it is, and keeps nothing. Errors as Fetch; damaged copies
  // beside a good one are named in `notes`.
  absl::Status Verify(const v1::DesiredReplica& shard, Cancellation& cancellation,
                      std::vector<std::string>& notes);

 private:
  class SourceTurn;
  struct Described;
  // A source of one transfer.
  struct Source {
    v1::ShardStore::Stub& stub;
    std::string holder;  // its worker, by name, once it has answered and says so
  };
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
  std::mutex mutex_;
  std::condition_variable free_;
  std::set<std::string> busy_;  // sources, guarded by mutex_
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_SHARD_FETCHER_H_
