// The checks that Validate(ModelSpec) is made of, so that every refusal reads alike: the field, its
// value and what is allowed.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_MODEL_FIELD_CHECK_H_
#define NIBBLE_MODEL_FIELD_CHECK_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace nibble {

// Bounds on what a spec may ask for: far beyond any model, and small enough that no number derived
// from a valid spec (parameters, bytes, operations) overflows 64 bits.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;  // of any vector a token has
inline constexpr int64_t kMaxRows = int64_t{1} << 24;   // of a table: vocabulary, positions
inline constexpr int64_t kMaxBlocks = 4096;

// 1 <= value <= max: "d_ff: 0 is not in [1, 1048576]".
absl::Status CheckSize(std::string_view field, int64_t value, int64_t max);
// "kv_heads: 3 does not divide heads, which is 16". Both are at least 1.
absl::Status CheckDivides(std::string_view field, int64_t value, std::string_view of,
                          int64_t total);
// a · b <= kMaxWidth: "heads: 4096 times head_dim, 4096, is over 1048576".
absl::Status CheckWidth(std::string_view field, int64_t value, std::string_view by, int64_t times);
// Finite and above zero: "norm_eps: -1 is not a finite number above 0".
absl::Status CheckPositive(std::string_view field, double value);

}  // namespace nibble

#endif  // NIBBLE_MODEL_FIELD_CHECK_H_
