// One who watches jobs: what he begins with, then what happens, in the order of the journal, with
// nothing between them.
//
// A beginning is read from a snapshot, message by message as its reader takes them: it is nowhere
// else, and an update that the snapshot has is not told again. Behind it the watch reads the log
// that all share (watch_log.h). So a watch costs next to nothing while its reader does not read,
// and it ends where the log has run away from it.
//
// Ownership: shared by the hub and the reader; keeps its snapshot until it has caught up or was
// cut. Thread-safety: all methods; its lock is held while a message is made, and by nobody who
// changes anything.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/watch_log.h"

namespace nibble {

// What a watch begins with. `next` makes one message after the other, the last of them `caught_up`;
// what it does not return OK ends the watch.
struct WatchBeginning {
  int64_t sequence = 0;  // of the snapshot
  std::function<absl::StatusOr<v1::WatchJobsResponse>()> next;
};

class Watch {
 public:
  using Begin = std::function<WatchBeginning()>;
  using Message = std::shared_ptr<const v1::WatchJobsResponse>;

  // Of all jobs where `jobs` is empty. `begin` is called when the first message is taken; without
  // it a watch begins with what happens from now on. `notify`: see WatchHub::Ask.
  Watch(const v1::WatchJobsRequest& request, std::shared_ptr<const WatchLog> log, Begin begin,
        std::function<void()> notify);

  // The next message; null: none yet, or the end.
  Message Next();
  // Whether Next would return one, or the watch is over.
  bool HasNext();
  // Not OK: it was cut, and nothing more comes.
  absl::Status status() const;
  void Cut(absl::Status why);
  // Its reader is gone.
  void Close() { closed_ = true; }

  enum class Phase { kNotBegun, kBegun, kCaughtUp };
  Phase phase() const { return phase_; }
  bool closed() const { return closed_; }
  // Its reader waits for a turn.
  void set_asked(bool asked) { asked_ = asked; }
  bool of_all() const { return jobs_.empty(); }
  const std::set<std::string>& jobs() const { return jobs_; }
  int64_t reads() const { return reads_; }
  void Notify() const {
    if (notify_) notify_();
  }

  // Cuts it where its reader has taken nothing for longer than `stall_ms` of what is there for him,
  // by calls at these times, or is too far behind. He may wait for a turn for as long as it takes.
  // Whether it is over.
  bool CutIfStalled(int64_t now_ms, int64_t stall_ms);

 private:
  bool Wants(const WatchLog::Entry& entry) const;
  // The rest with mutex_ held.
  std::shared_ptr<const WatchLog::Entry> Find();  // skips what is not wanted
  void CutLocked(absl::Status why);

  const std::set<std::string> jobs_;
  const bool with_samples_;
  const std::shared_ptr<const WatchLog> log_;
  const std::function<void()> notify_;
  std::atomic<Phase> phase_ = Phase::kNotBegun;
  std::atomic<bool> closed_ = false;
  std::atomic<bool> asked_ = false;
  std::atomic<int64_t> reads_ = 0;  // messages taken

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Begin begin_;
  WatchBeginning beginning_;
  int64_t told_ = 0;   // sequence of the snapshot it began with
  int64_t place_ = 0;  // in the log
  absl::Status status_;
  int64_t seen_ms_ = -1;  // when it was last seen to have read, or to have read everything
  int64_t seen_reads_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_H_
