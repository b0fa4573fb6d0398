// Which event of which job is posted next, and when (PostPlan), and the posted text. This part of
// notifications has no network, disk, clock or thread.
//
// The events to post follow from the state (NotifyTarget: wanted and settled events), so nothing is
// queued here and nothing is lost with the process. PostPlan remembers what the state does not
// have: current posts, failing receivers and their next try, since when a target waits, and settled
// events that are not durable yet.
//
// Order and bounds. A target gets the events of one job in order, one at a time. Each host gets one
// post at a time, so that a hanging receiver occupies one thread. A failing URL is tried again
// after a back-off, for all jobs that name it. Events that wait for `give_up_ms` are given up, at
// the latest after twice that time. Jobs take turns.
//
// Thread-safety: none; the functions of the text are pure. Times are of the monotonic clock.
#ifndef NIBBLE_SERVER_NOTIFY_POST_PLAN_H_
#define NIBBLE_SERVER_NOTIFY_POST_PLAN_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/backoff.h"
#include "proto/nibble/v1/job.pb.h"
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
    kFailed,   // will be tried again
    kRefused,  // given up at once
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
    int64_t wait_until_ms = 0;  // without a post: nothing is due earlier unless the state changes
  };

  explicit PostPlan(const Options& options) : options_(options) {}

  // `state` must not be older than in the call before.
  Turn Next(const State& state, int64_t now_ms);

  struct End {
    std::optional<v1::PostsSettled> settled;  // to store
    bool first_failure = false;               // of the URL since its last success
  };
  End Ended(const PlannedPost& post, const PostResult& result, int64_t now_ms);

  // `settled` could not be stored: its events are posted again.
  void NotStored(const v1::PostsSettled& settled);

 private:
  // The state of one target of a job.
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

  // Returns whether the turn has a post now.
  bool Consider(const State& state, const v1::JobRecord& job, int32_t target, int64_t now_ms,
                Turn& turn);
  void GiveUp(const v1::JobRecord& job, const Key& key, int64_t through, int64_t count,
              const std::string& problem, Cursor& cursor, Turn& turn);
  // Forgets targets and receivers that no job waits for.
  void Prune();

  const Options options_;
  int64_t round_ = 0;
  std::string last_job_;  // that had a post
  std::map<Key, Cursor> cursors_;
  std::map<std::string, Receiver> failing_;  // by URL
  std::set<std::string> busy_;               // origins
};

// The body, one JSON object; docs/guide/notifications.md describes it and the signature. Its "id"
// is the same each time the event is posted, and unique even after a restore of the coordinator's
// store from a backup. `job`: its present state.
std::string PostBody(const std::string& cluster, const v1::Job& job, const v1::JobEvent& event);

// "sha256=" and the HMAC-SHA256 of the body under the secret, in hexadecimal.
std::string PostSignature(std::string_view secret, std::string_view body);

}  // namespace nibble

#endif  // NIBBLE_SERVER_NOTIFY_POST_PLAN_H_
