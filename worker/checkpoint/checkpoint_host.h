// The daemon side of checkpoints: stores the checkpoints of ranks that run as other processes (or
// as threads of this one). Each rank offers its memory and keeps training while this side writes
// (snapshot_sink.h). A checkpoint is committed when the snapshots of all ranks are durable; if one
// rank's snapshot fails, the checkpoint fails and all ranks receive the reason.
//
// A rank that dies after its snapshot loses nothing: its memory is still mapped here.
//
// When the disk is full, the snapshots stay in memory and the writes are retried until there is
// space or the host ends. Ranks keep training; to them it is a checkpoint that takes long.
//
// Ownership: borrows the store; owns a thread per rank. The destructor drops what is not being
// written; a checkpoint being written is finished or dropped. Whoever calls the methods of
// SnapshotSink stops before the destructor.
// Thread-safety: all methods from any thread; no lock is taken while `commit` or a rank's reply
// runs.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_HOST_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_HOST_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/snapshot_area.h"
#include "worker/checkpoint/snapshot_sink.h"

namespace nibble {

class CheckpointHost : public SnapshotSink {
 public:
  using Clock = std::function<double()>;  // seconds, monotonic

  struct Options {
    CheckpointStore* store = nullptr;
    int64_t attempt = 1;  // of the ranks
    int32_t ranks = 1;    // number of ranks that run here
    Clock clock;
    // Commits the sealed shards of all ranks; null: CheckpointStore::Commit, which requires every
    // rank of the world to be here. On an error the checkpoint fails with it and the sealed shards
    // are dropped.
    std::function<absl::StatusOr<CheckpointStore::CommitReport>(const CheckpointHeader& header,
                                                                std::vector<ShardManifest> shards)>
        commit;
    // Removes the sealed shards here of a checkpoint that failed; null: CheckpointStore::Discard.
    std::function<absl::Status(int64_t step, const CheckpointHeader& header)> discard;
    // Frees space of about this size on a full disk, before a write waits for it; whether it has
    // freed any. May be null.
    std::function<bool(int64_t bytes)> make_room;
    // Reports what is being waited for; the text stays the same meanwhile, and is empty once the
    // wait is over. May be null. Called from the ranks' threads, one call at a time; it must not
    // call the host.
    std::function<void(const std::string&)> trouble;
    // Delay between retries for disk space; doubles from the first to the most.
    std::chrono::milliseconds first_retry{250};
    std::chrono::milliseconds most_retry{10'000};
  };

  // Fences off earlier attempts. Aborted for a stale attempt.
  static absl::StatusOr<std::unique_ptr<CheckpointHost>> Start(Options options);
  ~CheckpointHost() override;
  CheckpointHost(const CheckpointHost&) = delete;
  CheckpointHost& operator=(const CheckpointHost&) = delete;

  absl::Status Offer(int32_t rank, int descriptor, Reply reply) override;
  void Snapshot(int32_t rank, int64_t step, int64_t note_bytes) override;
  void Leave(int32_t rank) override;

 private:
  struct Request {
    int64_t step = 0;
    int64_t note_bytes = 0;
    double arrived = 0;
  };
  // A rank's thread has it.
  struct Rank {
    int32_t rank = 0;
    std::unique_ptr<SnapshotArea> area;
    Reply reply;
  };
  struct Mailbox {
    std::deque<Request> requests;
    bool left = false;
    bool gone = false;  // its thread has handled all of that
  };
  // A checkpoint that some ranks have handed over, not yet all.
  struct Pending {
    CheckpointHeader header;
    std::map<int32_t, ShardManifest> sealed;
    std::map<int32_t, Reply> waiting;  // ranks that have handed over and await the outcome
    absl::Status status;
    bool direct = true;
    double last_snapshot = 0;
  };

  explicit CheckpointHost(Options options) : options_(std::move(options)) {}
  void Serve(const Rank& rank);
  // The rank's next snapshot; nullopt: none will come.
  std::optional<Request> NextOf(int32_t rank);
  void Store(const Rank& rank, const Request& request);
  // Repeats `attempt`, which writes about `bytes`, until it succeeds, fails for another reason than
  // a full disk, or the host ends.
  absl::Status WithRoom(int64_t step, int64_t bytes, absl::FunctionRef<absl::Status()> attempt);
  void BeginWaiting(int64_t step);
  void EndWaiting();
  absl::StatusOr<ShardManifest> Write(const Rank& rank, const Request& request,
                                      CheckpointHeader& header, bool& direct);
  absl::StatusOr<CheckpointStore::CommitReport> Commit(const CheckpointHeader& header,
                                                       std::vector<ShardManifest> shards);
  // Fails a checkpoint that lacks the state of a rank that is gone. True if no rank will hand over
  // any more state for it.
  bool IsOver(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish(int64_t step, Pending pending);
  void Remove(int32_t rank);

  const Options options_;

  // Held while `trouble` runs, to order its calls.
  Mutex trouble_mutex_;
  int waiting_for_room_ ABSL_GUARDED_BY(trouble_mutex_) = 0;  // threads

  Mutex mutex_;
  CondVar changed_;  // a mailbox, or the end
  CondVar closing_changed_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<int32_t, std::thread> threads_ ABSL_GUARDED_BY(mutex_);  // by rank
  std::map<int32_t, Mailbox> mailboxes_ ABSL_GUARDED_BY(mutex_);    // of every rank that ever came
  std::map<int64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);      // by step
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_HOST_H_
