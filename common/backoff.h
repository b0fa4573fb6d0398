// How long to wait before trying again: longer each time, up to a bound, and a little different for
// each of its users, so that they do not all come back at once.
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

  // Of the next try: in [bound / 2, bound], the bound doubling with each call.
  std::chrono::milliseconds Next() {
    const int64_t bound = bound_.count();
    bound_ = std::min(options_.most, 2 * bound_);
    return std::chrono::milliseconds(
        std::uniform_int_distribution<int64_t>(bound / 2, bound)(random_));
  }
  // A try went well.
  void Reset() { bound_ = options_.first; }

 private:
  const Options options_;
  std::chrono::milliseconds bound_;
  std::mt19937_64 random_;
};

}  // namespace nibble

#endif  // NIBBLE_COMMON_BACKOFF_H_
