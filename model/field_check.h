// The checks of Validate(ModelSpec). Every error names the field, its value and what is allowed.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_MODEL_FIELD_CHECK_H_
#define NIBBLE_MODEL_FIELD_CHECK_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "model/limits.h"

namespace nibble {

// 1 <= value <= max: "d_ff: 0 is not in [1, 1048576]".
absl::Status CheckSize(std::string_view field, int64_t value, int64_t max);
// "kv_heads: 3 does not divide heads, which is 16". Both are at least 1.
absl::Status CheckDivides(std::string_view field, int64_t value, std::string_view of,
                          int64_t total);
// a · b <= kMaxWidth: "heads: 4096 times head_dim, 4096, is over 1048576".
absl::Status CheckWidth(std::string_view field, int64_t value, std::string_view by, int64_t times);
// "norm_eps: 0 is not in [1e-12, 1]"
absl::Status CheckReal(std::string_view field, double value, const RealBounds& bounds);

}  // namespace nibble

#endif  // NIBBLE_MODEL_FIELD_CHECK_H_
