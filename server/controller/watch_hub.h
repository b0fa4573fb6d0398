// Who watches jobs, and what each has not read yet.
//
// A watch begins with what is, says so (`caught_up`), and goes on with what happens, in the order
// of the journal; nothing lies between. Its resume token is the sequence number of the last update
// of which everything is told: whoever comes back with it misses nothing, and may hear the parts of
// the update after it twice. What has not been read waits in a buffer; a watch whose buffer is full
// is cut (ResourceExhausted) and keeps up nobody else. So is one that reads nothing for `stall_ms`
// while something waits for it, and one whose beginning does not fit beside those of the others: a
// reader who never reads costs a bounded room for a bounded time.
//
// Of each job the last kMaxEventsPerJob events are kept, whatever the journal holds: a token is
// OutOfRange where as many events of one of its jobs have come after it, never before. Jobs that
// were forgotten since are not told of.
//
// Ownership: subscriptions are shared by the hub and their readers; a reader that lets go ends its
// own by Close. Thread-safety: all methods. `notify` and the ends of waits run in the thread that
// publishes, with no lock of the hub held, and must not publish.
#ifndef NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_
#define NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_

#include <cstdint>
#include <deque>
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
#include "absl/strings/string_view.h"
#include "proto/nibble/v1/job_requests.pb.h"

namespace nibble {

struct WatchLimits {
  size_t watches = 1000;               // open at once
  size_t waits = 10'000;               // likewise
  size_t buffered = 4096;              // messages of one watch that were not read …
  size_t buffered_bytes = 8 << 20;     // … and their bytes
  size_t beginning_bytes = 256 << 20;  // of what watches begin with, all together, not yet read
  int64_t stall_ms = 120'000;          // one that has something to read reads within this time
  size_t jobs_per_watch = 1000;        // named by one
};

// "s41": everything up to update 41 is told.
std::string ResumeToken(int64_t sequence);
// InvalidArgument where it is none.
absl::StatusOr<int64_t> ParseResumeToken(absl::string_view token);

class Watch {
 public:
  // The next message; unset: none yet, or the end.
  std::optional<v1::WatchJobsResponse> Next();
  // Not OK: it was cut, and nothing more comes.
  absl::Status status() const;

 private:
  friend class WatchHub;
  using Message = std::shared_ptr<const v1::WatchJobsResponse>;
  bool Wants(const std::string& job) const { return jobs_.empty() || jobs_.contains(job); }

  std::set<std::string> jobs_;
  bool with_samples_ = false;
  WatchLimits limits_;
  std::function<void()> notify_;

  // With mutex_ held.
  void Cut(absl::Status why);

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<v1::WatchJobsResponse> beginning_;
  size_t beginning_bytes_ = 0;  // what it took when it was opened; 0 as soon as it is read
  std::deque<Message> news_;
  size_t news_bytes_ = 0;
  int64_t reads_ = 0;  // calls of Next that gave something
  absl::Status status_;
  // Of the hub, guarded by its mutex: when it last was seen to have read, or to have all read.
  int64_t seen_ms_ = 0;
  int64_t seen_reads_ = 0;
};

class WatchHub {
 public:
  explicit WatchHub(const WatchLimits& limits) : limits_(limits) {}

  // `beginning` is told first. ResourceExhausted: as many as are allowed are open.
  absl::StatusOr<std::shared_ptr<Watch>> Open(const v1::WatchJobsRequest& request,
                                              std::deque<v1::WatchJobsResponse> beginning,
                                              std::function<void()> notify);
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

  struct News {
    std::string job;
    v1::WatchJobsResponse message;
  };
  // In order; the token of the last is `token`, of those before it `token_before`.
  void Publish(std::vector<News> news, int64_t token_before, int64_t token);

  // done(OK) as soon as the job is seen in one of the states, FailedPrecondition when it is
  // finished and is not. The number ends it early: then `done` is not called, and false is returned
  // where it was called already, or is about to be.
  using Done = std::function<void(absl::Status)>;
  absl::StatusOr<int64_t> Wait(const std::string& job, std::set<v1::JobState> states, Done done);
  bool EndWait(int64_t number);
  // The job is now in this state.
  void Moved(const std::string& job, v1::JobState state);

 private:
  struct Waiting {
    std::string job;
    std::set<v1::JobState> states;
    Done done;
  };

  size_t BeginningBytes() const;  // with mutex_ held

  const WatchLimits limits_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::set<std::shared_ptr<Watch>> watches_;
  std::map<int64_t, Waiting> waits_;
  std::map<std::string, std::set<int64_t>> waits_of_;  // by job
  int64_t next_wait_ = 1;
};

// Whether a wait for these states is over with this one: OK, FailedPrecondition, or not yet.
std::optional<absl::Status> WaitOver(const std::string& job, const std::set<v1::JobState>& states,
                                     v1::JobState now);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_WATCH_HUB_H_
