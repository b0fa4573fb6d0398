// Who watches jobs, and who waits for one.
//
// A watch begins with what is, says so (`caught_up`), and goes on with what happens, in the order
// of the journal; nothing lies between. Its resume token is the sequence number of the last update
// of which everything is told: whoever comes back with it misses nothing, and may hear the parts of
// the update after it twice.
//
// Nothing here waits for a reader, and nothing that changes or reports takes longer for more of
// them: Publish adds to one log that all read (watch_log.h), and everything else is done by one
// thread of low priority (watch_pump.h), beginnings from snapshots among it (watch.h). A reader who
// is further behind than the log goes back, or takes nothing for `stall_ms` of what is there for
// him, is cut (ResourceExhausted): all of them together cost a bounded room for a bounded time.
//
// Of each job the last kMaxEventsPerJob events are kept, whatever the journal holds: a token is
// OutOfRange where as many events of one of its jobs have come after it, never before. Jobs that
// were forgotten since are not told of.
//
// Ownership: subscriptions are shared by the hub and their readers; a reader ends its own by Close.
// Thread-safety: all methods. `notify` and the ends of waits run in the hub's thread, with no lock
// of it held.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/watch.h"
#include "server/controller/watch_log.h"
#include "server/controller/watch_pump.h"

namespace nibble {

struct WatchLimits {
  size_t watches = 1000;         // open at once
  size_t waits = 10'000;         // likewise
  size_t kept = 65'536;          // of what happened, messages that are kept for those behind …
  size_t kept_bytes = 64 << 20;  // … and their bytes, for all watches together
  int64_t stall_ms = 120'000;    // one that has something to read reads within this time
  size_t jobs_per_watch = 1000;  // named by one
};

class WatchHub {
 public:
  explicit WatchHub(const WatchLimits& limits);

  // See Watch. ResourceExhausted: as many as are allowed are open.
  absl::StatusOr<std::shared_ptr<Watch>> Open(const v1::WatchJobsRequest& request,
                                              Watch::Begin begin, std::function<void()> notify);
  // `notify` of the watch is to be called, once, when there is something to read or it is over.
  void Ask(const std::shared_ptr<Watch>& watch) { pump_.Ask(watch); }
  void Close(const std::shared_ptr<Watch>& watch);
  // Cuts those that have not read for too long.
  void CutStalled(int64_t now_ms);
  bool IsWatched(const std::string& job) const;
  struct Counts {
    size_t watches = 0;
    size_t waits = 0;
  };
  // Of those that are open.
  Counts Count() const;

  // Whose updates are published from here on.
  void SetStore(const v1::StoreIdentity& store) { log_->SetStore(store); }
  // What an update brings, perhaps nothing; called for each, in their order.
  void Publish(int64_t sequence, std::vector<WatchLog::Entry> news);
  void PublishSamples(std::vector<WatchLog::Entry> samples);

  // done(OK) as soon as the job is seen in one of the states, FailedPrecondition when it is
  // finished and is not. The number ends it early: then `done` is not called, and false is returned
  // where it was called already, or is about to be.
  using Done = std::function<void(absl::Status)>;
  absl::StatusOr<int64_t> Wait(const std::string& job, std::set<v1::JobState> states, Done done);
  bool EndWait(int64_t number);
  // Waits until every wait that has ended was told, and for the `notify` under way; not from them.
  void Settle() { pump_.Settle(); }
  // The job is now in this state.
  void Moved(const std::string& job, v1::JobState state);

 private:
  struct Waiting {
    std::string job;
    std::set<v1::JobState> states;
    Done done;
  };

  const WatchLimits limits_;
  const std::shared_ptr<WatchLog> log_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::set<std::shared_ptr<Watch>> watches_;
  size_t of_all_ = 0;                      // of them, count
  size_t most_ = 0;                        // open at once since memory was last given back
  std::map<std::string, size_t> watched_;  // by job: those that name it, count
  std::map<int64_t, Waiting> waits_;
  std::map<std::string, std::set<int64_t>> waits_of_;  // by job
  int64_t next_wait_ = 1;
  int64_t passed_by_ms_ = 0;  // when slow readers last were

  WatchPump pump_;  // last: its turns use the above
};

// Whether a wait for these states is over with this one: OK, FailedPrecondition, or not yet.
std::optional<absl::Status> WaitOver(const std::string& job, const std::set<v1::JobState>& states,
                                     v1::JobState now);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_
