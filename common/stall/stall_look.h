// Whether a reader has stalled: something waits for it, and it takes nothing. Whoever cuts off slow
// readers looks at them periodically, so that writing to them needs no clock.
//
// Ownership: values. Thread-safety: none.
#ifndef NIBBLE_COMMON_STALL_STALL_LOOK_H_
#define NIBBLE_COMMON_STALL_STALL_LOOK_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nibble {

class StallLook {
 public:
  // `waits`: something waits for the reader; `taken`: the number of messages that it has taken so
  // far. Returns for how long, in ms, the looks have seen it take nothing: 0 at the first one.
  int64_t Look(int64_t now_ms, bool waits, int64_t taken) {
    if (!waits || taken != seen_taken_ || seen_ms_ < 0) {
      seen_ms_ = now_ms;
      seen_taken_ = taken;
    }
    return now_ms - seen_ms_;
  }

 private:
  int64_t seen_ms_ = -1;  // when it was last seen to have read, or to have nothing to read
  int64_t seen_taken_ = 0;
};

// ResourceExhausted: why the reader `who` is cut off. `then`: what it can do.
inline absl::Status ReadsTooSlowly(absl::string_view who, int64_t for_ms, int64_t most_ms,
                                   absl::string_view then) {
  return absl::ResourceExhaustedError(absl::StrCat(who,
                                                   " reads too slowly: it took no message for ",
                                                   for_ms, " ms; allowed: ", most_ms, "; ", then));
}

}  // namespace nibble

#endif  // NIBBLE_COMMON_STALL_STALL_LOOK_H_
