// Which refusals get a line of their own in the audit log. Those of one address beyond a rate are
// counted instead, and the counts are written now and then: every refusal is in the log, and nobody
// can fill it.
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
    RateLimits lines = {.per_second = 50, .burst = 2000};  // of one address
    int64_t count_ms = 10'000;                             // between two counts
    size_t addresses = 100;  // counted apart between two counts; the others are
                             // counted together
  };

  RefusalLines(const Clock& clock, const Limits& limits)
      : clock_(clock), limits_(limits), limiter_(clock, limits.lines) {}

  // Whether a refusal of this address gets a line; else it is counted.
  bool Take(const std::string& address);
  // The refusals without a line by address, if it is time for them or it is the `end`; else none.
  std::vector<std::pair<std::string, int64_t>> TakeCounts(bool end);

 private:
  const Clock& clock_;
  const Limits limits_;
  RateLimiter limiter_;
  Mutex mutex_;
  int64_t counted_ms_ ABSL_GUARDED_BY(mutex_) = 0;  // when the counts were last taken
  absl::flat_hash_map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_REFUSAL_LINES_H_
