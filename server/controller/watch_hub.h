// Open watches and waits of jobs (WatchHub), and the thread that serves them (WatchPump).
//
// A watch begins with the current jobs, ends that part with `caught_up`, and continues with the
// messages of later updates in the order of the journal, without a gap. Its resume token names the
// last update that was sent completely and the last event after that: a reader who resumes with it
// misses nothing and gets no event twice, but may get jobs twice.
//
// Nothing here waits for a reader, and changes and reports take no longer for more readers: Publish
// adds to one log that all read, and one thread of low priority does the rest, including the
// beginnings from snapshots. A reader who falls behind the log, or takes nothing available for
// `stall_ms`, is cut (ResourceExhausted): so all readers together cost bounded memory for a bounded
// time.
//
// The last kMaxEventsPerJob events of each job are kept, whatever the journal keeps: a token is
// OutOfRange only if at least as many events of one of its jobs have come after it. Jobs forgotten
// since are not reported.
//
// Ownership: watches are shared by the hub and their readers; a reader ends its own by Close.
// Thread-safety: all methods. `notify` and the ends of waits run in the hub's thread, with no lock
// of it held.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/watch.h"

namespace nibble {

// Serves the watches: one thread of low priority, so that all watches together use at most one
// core, and only the time that changes and reports leave idle.
//
// A watch asks for a turn and gets one once it has something to read. Turns go around, alternating
// between later messages and beginnings. Only kBeginnings watches read their beginnings at a time:
// each ends soon, and few snapshots are kept. A reader who does not read gives up its place among
// them.
//
// Shares ownership of the waiting watches. Thread-safety: all methods; only Settle and the
// destructor wait for a turn to end. Turns and tasks run without a lock of the pump.
class WatchPump {
 public:
  WatchPump();
  ~WatchPump();  // runs the pending tasks
  WatchPump(const WatchPump&) = delete;
  WatchPump& operator=(const WatchPump&) = delete;

  // `Notify` of the watch is called once, as soon as it has something to read or is over.
  void RequestTurn(std::shared_ptr<Watch> watch);
  // There may be messages for watches that had nothing to read.
  void Wake();
  // The watch is closed; another may begin in its place.
  void Release(const std::shared_ptr<Watch>& watch);
  // Watches that have read nothing of their beginnings since the last call lose their place among
  // the kBeginnings.
  void PassSlowBy();
  // Runs before any turn.
  void Run(std::function<void()> task);
  // Waits for all tasks so far and the current turn. Must not be called from a turn or a task.
  void Settle();

 private:
  using Watches = std::list<std::shared_ptr<Watch>>;

  static constexpr size_t kBeginnings = 16;  // read at a time

  void Serve();
  bool MayBegin() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !fresh_.empty() && beginning_.size() < kBeginnings;
  }
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Watches TakeTurn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);  // one watch, or none

  Mutex mutex_;
  CondVar changed_;
  Watches ready_ ABSL_GUARDED_BY(mutex_);    // caught up; may have messages
  Watches begun_ ABSL_GUARDED_BY(mutex_);    // are reading their beginning
  Watches fresh_ ABSL_GUARDED_BY(mutex_);    // have not begun
  Watches waiting_ ABSL_GUARDED_BY(mutex_);  // had nothing to read when they asked
  // At most kBeginnings watches, and Watch::reads at the last PassSlowBy.
  std::map<std::shared_ptr<Watch>, int64_t> beginning_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool ready_next_ ABSL_GUARDED_BY(mutex_) = true;  // the next turn goes to ready_
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last: it uses the above
};

struct WatchLimits {
  size_t watches = 1000;         // open at once
  size_t waits = 10'000;         // open at once
  size_t kept = 65'536;          // messages kept for slow readers …
  size_t kept_bytes = 64 << 20;  // … and their bytes, shared by all watches
  int64_t stall_ms = 120'000;    // a reader with messages must take one within this time
  size_t jobs_per_watch = 1000;  // named by one watch
};

class WatchHub {
 public:
  explicit WatchHub(const WatchLimits& limits);

  // See Watch. ResourceExhausted: the number of open watches is at its limit.
  absl::StatusOr<std::shared_ptr<Watch>> Open(const v1::WatchJobsRequest& request,
                                              Watch::Begin begin, std::function<void()> notify);
  // Requests one call of the watch's `notify`, once there is something to read or the watch is
  // over.
  void RequestTurn(const std::shared_ptr<Watch>& watch) { pump_.RequestTurn(watch); }
  void Close(const std::shared_ptr<Watch>& watch);
  // Cuts watches whose readers have not read for too long.
  void CutStalled(int64_t now_ms);
  bool IsWatched(const std::string& job) const;
  struct Counts {
    size_t watches = 0;
    size_t waits = 0;
  };
  // The numbers of open ones.
  Counts Count() const;

  // The store whose updates are published from here on.
  void SetStore(const v1::StoreIdentity& store) { log_->SetStore(store); }
  // The messages of an update, perhaps none; called for each update in order.
  void Publish(int64_t sequence, std::vector<WatchLog::Entry> entries);
  void PublishSamples(std::vector<WatchLog::Entry> samples);

  // Calls done(OK) once the job is in one of the states, FailedPrecondition if it finishes in
  // another. EndWait with the returned number ends the wait early: `done` is not called, or EndWait
  // returns false because it was called or is about to be.
  using Done = std::function<void(absl::Status)>;
  absl::StatusOr<int64_t> Wait(const std::string& job, std::set<v1::JobState> states, Done done);
  bool EndWait(int64_t number);
  // Waits until all `done` of ended waits and the running `notify` have returned; not from them.
  void Settle() { pump_.Settle(); }
  // The job is now in this state: ends the waits that it decides.
  void EndWaits(const std::string& job, v1::JobState state);

 private:
  struct Waiting {
    std::string job;
    std::set<v1::JobState> states;
    Done done;
  };

  const WatchLimits limits_;
  const std::shared_ptr<WatchLog> log_;
  mutable Mutex mutex_;
  std::set<std::shared_ptr<Watch>> watches_ ABSL_GUARDED_BY(mutex_);
  size_t of_all_ ABSL_GUARDED_BY(mutex_) = 0;  // watches of all jobs, count
  size_t most_ ABSL_GUARDED_BY(mutex_) = 0;    // open at once since memory was last returned
  std::map<std::string, size_t> watched_ ABSL_GUARDED_BY(mutex_);  // watches of each job, count
  std::map<int64_t, Waiting> waits_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::set<int64_t>> waits_of_ ABSL_GUARDED_BY(mutex_);  // by job
  int64_t next_wait_ ABSL_GUARDED_BY(mutex_) = 1;
  int64_t passed_by_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // when PassSlowBy was last called

  WatchPump pump_;  // last: its turns use the above
};

// The result of a wait for these states when the job is in `now`: OK, FailedPrecondition, or unset:
// it continues.
std::optional<absl::Status> WaitOver(const std::string& job, const std::set<v1::JobState>& states,
                                     v1::JobState now);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_
