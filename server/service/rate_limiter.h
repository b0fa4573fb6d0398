// How often peers may call, and how fast their refusals go out.
//
// A refusal costs nearly as much as an answer, so a caller that ignores it takes the cores from all
// others: one that waits for its refusals before it calls again is slowed down by answering them
// one after the other, at a bounded pace. Only a flood has a backlog of a second or more: whoever
// has that many calls in flight, or gives up its calls without waiting for them.
//
// Ownership: values, and a borrowed clock. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_SERVICE_RATE_LIMITER_H_
#define NIBBLE_SERVER_SERVICE_RATE_LIMITER_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/mutex.h"
#include "server/controller/clock.h"

namespace nibble {

struct RateLimits {
  double per_second = 10'000;  // requests of one caller or address; 0: unlimited
  double burst = 20'000;       // requests at once after a pause; at least 1
  size_t peers = 10'000;       // callers and addresses that have a bucket of their own
  // Refusals of one caller or address that go out per second; 0: all of them at once.
  double refusals_per_second = 500;
  int64_t refusal_wait_ms = 1000;  // a peer whose next refusal would wait for longer is flooding
};

// When a refusal goes out.
struct RefusalTurn {
  int64_t after_ms = 0;
  bool flooding = false;  // its turn would be too late; it has none
};

// A token bucket per peer: an authenticated caller, or the address of any other. A bucket that is
// full again and owes no refusals is dropped when space is needed, and there are never more than
// `peers` buckets: beyond that, all new peers share one.
class RateLimiter {
 public:
  RateLimiter(const Clock& clock, const RateLimits& limits) : clock_(clock), limits_(limits) {}

  // ResourceExhausted, naming the peer, the rate and when to retry.
  absl::Status Take(const std::string& peer);
  // The next turn of the peer's refusals, whatever they are for. A turn that nobody waits for any
  // more stays taken.
  RefusalTurn Refuse(const std::string& peer);
  // The number of buckets.
  size_t size() const;

 private:
  struct Bucket {
    double tokens = 0;
    int64_t at_ms = 0;
    double free_ms = 0;  // when the next refusal may go out
  };

  Bucket& Find(const std::string& peer, int64_t now_ms, std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fill(Bucket& bucket, int64_t now_ms) const;

  const Clock& clock_;
  const RateLimits limits_;
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Bucket> buckets_ ABSL_GUARDED_BY(mutex_);  // by peer
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_RATE_LIMITER_H_
