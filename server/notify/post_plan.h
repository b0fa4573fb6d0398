// Which event of which job is posted next, and when: the part of notifications without a network,
// a disk, a clock or a thread.
//
// What is to be posted follows from the state (NotifyTarget: wanted and settled events), so nothing
// is queued here and nothing is lost with the process. What is remembered here is what the state
// does not have: posts under way, receivers that failed and when each is tried again, since when a
// target waits, and what was settled and is not durable yet.
//
// Order and bounds. Events of one job reach one target in their order, one at a time. One post at a
// time goes to one host, so that a receiver that hangs occupies one thread. A URL that fails is
// tried again after a back-off, for all jobs that name it. Events that wait for `give_up_ms` are
// given up, at the latest when twice that has passed. Jobs take turns.
//
// Thread-safety: none of its own. Times are of the monotonic clock.
#ifndef NIBBLE_SERVER_NOTIFY_POST_PLAN_H_
#define NIBBLE_SERVER_NOTIFY_POST_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/backoff.h"
#include "proto/nibble/v1/update.pb.h"
#include "server/state/state.h"

namespace nibble {

struct PlannedPost {
  std::string url;
  std::string origin;  // of the URL
  int32_t target = 0;  // of the job, from 0
  v1::JobEvent event;
};

struct PostResult {
  enum class Kind : uint8_t {
    kDelivered,
    kFailed,   // it is tried again
    kRefused,  // it is not
  };
  Kind kind = Kind::kDelivered;
  std::string problem;
};

class PostPlan {
 public:
  struct Options {
    Backoff::Options backoff{std::chrono::seconds(1), std::chrono::minutes(5), 0};
    int64_t give_up_ms = 3600'000;
  };
  struct Turn {
    std::optional<PlannedPost> post;         // for Ended
    std::vector<v1::PostsSettled> given_up;  // to store
    int64_t wait_until_ms = 0;  // without a post: nothing is due before, unless the state changes
  };

  explicit PostPlan(const Options& options) : options_(options) {}

  // `state` is never older than at the call before.
  Turn Next(const State& state, int64_t now_ms);

  struct End {
    std::optional<v1::PostsSettled> settled;  // to store
    bool first_failure = false;               // of the URL since it last took a post
  };
  End Ended(const PlannedPost& post, const PostResult& result, int64_t now_ms);

  // What was to be stored could not be: it is posted again.
  void NotStored(const v1::PostsSettled& settled);

 private:
  // Of a target of a job.
  struct Cursor {
    int64_t settled = 0;     // event; perhaps not durable yet
    int64_t mark_event = 0;  // events up to this one are given up when …
    int64_t mark_ms = 0;     // … this is `give_up_ms` ago
    bool under_way = false;
    int64_t round = 0;  // of Next that last saw it
  };
  struct Receiver {
    explicit Receiver(const Backoff::Options& options) : backoff(options) {}
    Backoff backoff;
    int64_t next_ms = 0;
    std::string problem;
    int64_t round = 0;
  };
  using Key = std::pair<std::string, int32_t>;

  // True where the turn has a post now.
  bool Consider(const State& state, const v1::JobRecord& job, int32_t target, int64_t now_ms,
                Turn& turn);
  void GiveUp(const v1::JobRecord& job, const Key& key, int64_t through, int64_t count,
              const std::string& problem, Cursor& cursor, Turn& turn);
  // Forgets what no job waits for any more.
  void Prune();

  const Options options_;
  int64_t round_ = 0;
  std::string last_job_;  // that had a post
  std::map<Key, Cursor> cursors_;
  std::map<std::string, Receiver> failing_;  // by URL
  std::set<std::string> busy_;               // origins
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_POST_PLAN_H_
