// How many requests each peer may make: a bucket of tokens per peer that fills at a rate. A peer
// that is not heard from costs nothing after its bucket is full again, and no number of peers costs
// more than `peers` buckets: beyond, all newcomers share one.
//
// Ownership: borrows the clock. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_SERVICE_RATE_LIMIT_H_
#define NIBBLE_SERVER_SERVICE_RATE_LIMIT_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/controller/clock.h"

namespace nibble {

struct RateLimits {
  double per_second = 10'000;  // requests of one peer; 0: no bound
  double burst = 20'000;       // at once, after a pause; at least 1
  size_t peers = 10'000;       // that are told apart
};

class RateLimiter {
 public:
  RateLimiter(const Clock& clock, const RateLimits& limits) : clock_(clock), limits_(limits) {}

  // ResourceExhausted naming the peer, the rate and when to come again.
  absl::Status Take(const std::string& peer);
  // Buckets that are kept.
  size_t size() const;

 private:
  struct Bucket {
    double tokens = 0;
    int64_t at_ms = 0;
  };

  void Fill(Bucket& bucket, int64_t now_ms) const;

  const Clock& clock_;
  const RateLimits limits_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<std::string, Bucket> buckets_;  // guarded by mutex_
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_RATE_LIMIT_H_
