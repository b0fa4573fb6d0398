// A watch of jobs (Watch), and the log of recent messages that all watches share (WatchLog).
//
// Ownership: a watch is shared by the hub and its reader; it keeps its snapshot until it has caught
// up or was cut. Log entries are shared with their readers. Thread-safety: all methods. A watch's
// lock is held while a message is made, by code that only reads (WatchBeginning), and is never
// taken by code that changes the state. The log's methods cost the same for any number of readers.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/mutex.h"
#include "common/stall/stall_look.h"
#include "proto/nibble/v1/common.pb.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {

// The meaning of a resume token: the reader has everything up to this update of this store, and of
// the next update the events up to one. Events of an update are sent in the order of their keys.
// Another store, or the same one after a restore, has other updates under the same numbers.
struct ResumePlace {
  std::string store;  // see StoreMark
  int64_t sequence = 0;
  std::string event;  // key of the last event of the next update, or after all; empty: none of it
};
// "27c49345.2." for an id that begins with these digits, in epoch 2; empty: no id yet.
std::string StoreMark(const v1::StoreIdentity& store);
// "27c49345.2.s41", or "27c49345.2.s41:train-1/0000000000000007" within update 42.
std::string ResumeToken(absl::string_view store_mark, int64_t sequence,
                        absl::string_view event = "");
// InvalidArgument: not a resume token.
absl::StatusOr<ResumePlace> ParseResumeToken(absl::string_view token);

// The recent messages of all watches: one list, in which each reader has a place. Its bounds limit
// the memory of all slow readers together; a reader whose place is no longer kept is cut.
class WatchLog {
 public:
  struct Entry {
    std::string job;
    v1::WatchJobsResponse message;
    int64_t sequence = 0;  // of its update; of a sample: the newest update at that time
  };
  using Entries = std::vector<std::shared_ptr<const Entry>>;

  // Keeps at most this many entries and bytes.
  WatchLog(size_t messages, size_t bytes) : max_messages_(messages), max_bytes_(bytes) {}

  // The store that the tokens of later messages name.
  void SetStore(const v1::StoreIdentity& store);
  // The messages of an update, perhaps none, events first and sorted by their keys; updates come in
  // order. The last message has the update's token; each earlier one has that of the update before,
  // with the event, or all events if it is none.
  void Append(int64_t sequence, std::vector<Entry> entries);
  // Adds samples, which belong to no update.
  void AppendSamples(std::vector<Entry> samples);
  // Empties the log when nobody watches; the caller frees the entries.
  using Kept = std::deque<std::shared_ptr<const Entry>>;
  Kept TakeAll();

  // The place of the next entry.
  int64_t end() const;
  // At most `most` entries from a place on. ResourceExhausted: some are no longer kept.
  absl::StatusOr<Entries> From(int64_t place, size_t most) const;

 private:
  // Entries beyond the bounds move to `dropped`, which the caller frees without the lock.
  void Push(Entry entry, int64_t token, absl::string_view event, Entries& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const size_t max_messages_;
  const size_t max_bytes_;
  mutable Mutex mutex_;
  Kept entries_ ABSL_GUARDED_BY(mutex_);
  std::deque<size_t> sizes_ ABSL_GUARDED_BY(mutex_);  // of the entries, bytes
  int64_t first_ ABSL_GUARDED_BY(mutex_) = 0;         // place of the first entry
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t published_ ABSL_GUARDED_BY(mutex_) = 0;  // newest update whose entries are all here
  std::string store_mark_ ABSL_GUARDED_BY(mutex_);
};

// The beginning of a watch: `next` makes its messages, the last one `caught_up`. An error of `next`
// cuts the watch. Both run under the watch's lock; they read a snapshot and wait for nothing.
struct WatchBeginning {
  int64_t sequence = 0;  // of the snapshot
  std::function<absl::StatusOr<v1::WatchJobsResponse>()> next;
};

// One reader's watch of jobs: a beginning, then the messages of later updates in the order of the
// journal, without a gap.
//
// The beginning is read from a snapshot, message by message as the reader takes them; updates that
// the snapshot includes are not repeated. Then the watch reads the shared log. So an idle reader
// costs almost nothing, and a watch ends if the log has dropped its place.
class Watch {
 public:
  using Begin = std::function<WatchBeginning()>;
  using Message = std::shared_ptr<const v1::WatchJobsResponse>;

  // Watches all jobs if `jobs` is empty. `begin` is called when the first message is taken; without
  // it the watch has only messages of later updates. `notify`: see WatchHub::RequestTurn.
  Watch(const v1::WatchJobsRequest& request, std::shared_ptr<const WatchLog> log, Begin begin,
        std::function<void()> notify);

  // The next message; null: none yet, or the watch is over.
  Message Next();
  // Whether Next would return a message, or the watch is over.
  bool HasNext();
  // Not OK: the watch was cut; no message follows.
  absl::Status status() const;
  void Cut(absl::Status why);
  // The reader is gone.
  void Close() { closed_ = true; }

  enum class Phase { kNotBegun, kBegun, kCaughtUp };
  Phase phase() const { return phase_; }
  bool closed() const { return closed_; }
  // Whether the reader waits for a turn.
  void set_waits_for_turn(bool waits) { waits_for_turn_ = waits; }
  bool of_all() const { return jobs_.empty(); }
  const std::set<std::string>& jobs() const { return jobs_; }
  int64_t reads() const { return reads_; }
  void Notify() const {
    if (notify_) notify_();
  }

  // Cuts the watch if its reader has taken none of the available messages for longer than
  // `stall_ms`, as seen by calls of this method, or is too far behind. Waiting for a turn does not
  // count. Returns whether the watch is over.
  bool CutIfStalled(int64_t now_ms, int64_t stall_ms);

 private:
  bool Wants(const WatchLog::Entry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The next wanted entry, or null; skips the others.
  std::shared_ptr<const WatchLog::Entry> Find() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CutLocked(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool CutIfStalledLocked(int64_t now_ms, int64_t stall_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::set<std::string> jobs_;
  const bool with_samples_;
  const std::shared_ptr<const WatchLog> log_;
  const std::function<void()> notify_;
  std::atomic<Phase> phase_ = Phase::kNotBegun;
  std::atomic<bool> closed_ = false;
  std::atomic<bool> waits_for_turn_ = false;
  std::atomic<int64_t> reads_ = 0;  // messages taken

  mutable Mutex mutex_;
  Begin begin_ ABSL_GUARDED_BY(mutex_);
  WatchBeginning beginning_ ABSL_GUARDED_BY(mutex_);
  int64_t begun_sequence_ ABSL_GUARDED_BY(mutex_) = 0;  // of the snapshot that it began with
  int64_t place_ ABSL_GUARDED_BY(mutex_) = 0;           // in the log
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  StallLook look_ ABSL_GUARDED_BY(mutex_);  // of CutIfStalled
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_H_
