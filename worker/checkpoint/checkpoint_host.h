// The daemon side of checkpoints: stores the checkpoints of ranks that run as other processes (or
// as threads of this one). Each rank connects, hands over its memory (checkpoint_link.h) and keeps
// training while this side writes. A checkpoint is committed when the snapshots of all ranks are
// durable; if one rank's snapshot fails, the checkpoint fails and all ranks receive the reason.
//
// A rank that dies after its snapshot loses nothing: its memory is still mapped here.
//
// When the disk is full, the snapshots stay in memory and the writes are retried until there is
// space or the host ends. Ranks keep training; to them it is a checkpoint that takes long.
//
// Ownership: borrows the store; owns the socket, its directory, and a thread per rank. The
// destructor closes the connections; a checkpoint being written is finished or dropped.
// Thread-safety: all methods from any thread; `done` is called from the ranks' threads, one call at
// a time.
#ifndef NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_HOST_H_
#define NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_HOST_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_link.h"
#include "worker/checkpoint/checkpoint_store.h"
#include "worker/checkpoint/manifest.h"

namespace nibble {

class CheckpointHost {
 public:
  using Clock = std::function<double()>;  // seconds, monotonic

  struct Outcome {
    int64_t step = 0;
    absl::Status status;
    int64_t bytes = 0;
    int64_t deleted = 0;       // checkpoints that retention removed
    double write_seconds = 0;  // from the last rank's snapshot to the commit
    bool direct = true;        // written past the page cache; false is slower
  };

  struct Options {
    CheckpointStore* store = nullptr;
    int64_t attempt = 1;     // of the ranks; other attempts are refused
    int32_t first_rank = 0;  // lowest rank that runs here
    int32_t ranks = 1;       // number of ranks that run here
    // The socket gets a directory of its own in this one; empty: in the system's temporary
    // directory.
    std::string run_directory;
    Clock clock;
    // Commits the sealed shards of all ranks; null: CheckpointStore::Commit, which requires every
    // rank of the world to be here. On an error the checkpoint fails with it and the sealed shards
    // are dropped.
    std::function<absl::StatusOr<CheckpointStore::CommitReport>(const CheckpointHeader& header,
                                                                std::vector<ShardManifest> shards)>
        commit;
    std::function<void(const Outcome&)> done;  // may be null
    // Reports what is being waited for; the text stays the same meanwhile, and is empty once the
    // wait is over. May be null. Called from the ranks' threads, one call at a time.
    std::function<void(const std::string&)> trouble;
    // Delay between retries for disk space; doubles from the first to the most.
    std::chrono::milliseconds first_retry{250};
    std::chrono::milliseconds most_retry{10'000};
  };

  // Fences off earlier attempts, and listens. Aborted for a stale attempt.
  static absl::StatusOr<std::unique_ptr<CheckpointHost>> Start(Options options);
  ~CheckpointHost();
  CheckpointHost(const CheckpointHost&) = delete;
  CheckpointHost& operator=(const CheckpointHost&) = delete;

  // The socket that ranks connect to, in a directory that only this user may enter.
  const std::string& address() const { return address_; }

 private:
  struct Rank {
    int32_t rank;
    int socket;
    std::unique_ptr<SnapshotArea> area;
  };
  // A checkpoint that some ranks have handed over, not yet all.
  struct Pending {
    CheckpointHeader header;
    std::map<int32_t, ShardManifest> sealed;
    std::map<int32_t, int> waiting;  // sockets of ranks that await the outcome
    absl::Status status;
    bool direct = true;
    double last_snapshot = 0;
  };

  explicit CheckpointHost(Options options) : options_(std::move(options)) {}
  absl::Status Listen();
  void Accept();
  void Serve(int socket);
  absl::Status Greet(int socket, Rank& rank);
  void TakeSnapshot(Rank& rank, const RankMessage& message);
  // Repeats `attempt` until it succeeds, fails for another reason than a full disk, or the host
  // ends.
  absl::Status WithRoom(int64_t step, absl::FunctionRef<absl::Status()> attempt);
  void BeginWaiting(int64_t step);
  void EndWaiting();
  absl::StatusOr<ShardManifest> Write(const Rank& rank, int64_t step, bool& direct);
  absl::StatusOr<CheckpointStore::CommitReport> Commit(const CheckpointHeader& header,
                                                       std::vector<ShardManifest> shards);
  void Finish(int64_t step, Pending pending);
  void RankIsGone(int32_t rank);

  const Options options_;
  std::string directory_;
  std::string address_;
  int listener_ = -1;
  std::thread acceptor_;

  std::mutex done_mutex_;     // one call of `done` at a time
  std::mutex trouble_mutex_;  // one call of `trouble` at a time
  int waiting_for_room_ = 0;  // threads; guarded by trouble_mutex_
  std::mutex mutex_;
  // Guarded by mutex_.
  bool closing_ = false;
  std::condition_variable closing_changed_;
  std::vector<int> sockets_;  // of connected ranks; -1 once the thread has ended
  std::vector<std::thread> threads_;
  std::map<int32_t, bool> present_;
  std::map<int64_t, Pending> pending_;  // by step
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_CHECKPOINT_CHECKPOINT_HOST_H_
