// Retry with exponential back-off and jitter: each wait is up to twice as long as the one before,
// up to a bound, and differs between users with different seeds, so that they do not retry
// together.
//
// Thread-safety: none; give each user its own.
#ifndef NIBBLE_COMMON_BACKOFF_H_
#define NIBBLE_COMMON_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace nibble {

class Backoff {
 public:
  struct Options {
    std::chrono::milliseconds first{100};
    std::chrono::milliseconds most{5000};
    uint64_t seed = 0;
  };
  explicit Backoff(const Options& options)
      : options_(options), bound_(options.first), random_(options.seed) {}

  // The wait before the next attempt: in [bound / 2, bound]; the bound doubles with each call.
  std::chrono::milliseconds Next() {
    const int64_t bound = bound_.count();
    bound_ = std::min(options_.most, 2 * bound_);
    return std::chrono::milliseconds(
        std::uniform_int_distribution<int64_t>(bound / 2, bound)(random_));
  }
  // After a successful attempt: begins again with the first wait.
  void Reset() { bound_ = options_.first; }

 private:
  const Options options_;
  std::chrono::milliseconds bound_;
  std::mt19937_64 random_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_BACKOFF_H_
