// Sizes and rates as people type them: a number and a unit, "141GB", "350 GB/s", "540TFLOP/s".
//
// Units have a decimal prefix (k, M, G, T, P); bytes also a binary one (KiB, MiB, GiB, TiB). "b" is
// a bit and "B" a byte, as in the rates of links: "400Gb/s" is "50GB/s". Numbers are positive and
// finite.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_TEXT_QUANTITY_H_
#define NIBBLE_COMMON_TEXT_QUANTITY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nibble {

// "141GB", "131.3 GiB": from 1 byte to 2^62. InvalidArgument with the text and what is allowed, as
// the functions below.
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);
// "350GB/s", "400Gb/s": bytes per second.
absl::StatusOr<double> ParseByteRate(absl::string_view text);
// "540TFLOP/s" or "540TFLOPS": operations per second.
absl::StatusOr<double> ParseFlopRate(absl::string_view text);

}  // namespace nibble

#endif  // NIBBLE_COMMON_TEXT_QUANTITY_H_
