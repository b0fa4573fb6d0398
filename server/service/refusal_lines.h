// Which refusals get a line of their own in the audit log. Those beyond a rate, of one address or
// of all, are counted instead, and the counts are written periodically: every refusal is accounted
// for, and nobody can fill the log with them.
//
// Ownership: a borrowed clock. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_SERVICE_REFUSAL_LINES_H_
#define NIBBLE_SERVER_SERVICE_REFUSAL_LINES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "common/mutex.h"
#include "server/controller/clock.h"
#include "server/service/rate_limiter.h"

namespace nibble {

class RefusalLines {
 public:
  struct Limits {
    RateLimits of_address = {.per_second = 50, .burst = 2000};
    RateLimits of_all = {.per_second = 200, .burst = 10'000};
    int64_t count_ms = 10'000;  // between two counts
    size_t addresses = 100;     // with a count of their own; the others share one
  };
  // By address, in order; "others" for the addresses without a count of their own.
  using Counts = std::vector<std::pair<std::string, int64_t>>;

  RefusalLines(const Clock& clock, const Limits& limits)
      : clock_(clock),
        limits_(limits),
        of_address_(clock, limits.of_address),
        of_all_(clock, limits.of_all) {}

  // Whether a refusal of this address gets a line; otherwise it is counted.
  bool Take(const std::string& address);
  // The refusals without a line since the last counts. Empty if that was less than `count_ms` ago,
  // unless this is the `end`.
  Counts TakeCounts(bool end);

 private:
  const Clock& clock_;
  const Limits limits_;
  RateLimiter of_address_, of_all_;
  Mutex mutex_;
  int64_t counted_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // when the counts were last taken
  absl::flat_hash_map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_REFUSAL_LINES_H_
