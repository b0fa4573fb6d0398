// The bounds that reader and writer share, and the one formula for a tensor's size in bytes, so
// that whatever the writer accepts the reader accepts too.
//
// Thread-safety: every function is pure.

#ifndef NIBBLE_COMMON_SAFETENSORS_LIMITS_H_
#define NIBBLE_COMMON_SAFETENSORS_LIMITS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/safetensors/dtype.h"

namespace nibble::safetensors_internal {

// The length prefix: one little-endian u64 that counts the header's bytes.
inline constexpr uint64_t kPrefixBytes = 8;
// The same bound as the reference implementation's.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
// The remaining bounds are ours: they cap what a hostile header can make the reader allocate, and
// lie well above any real checkpoint.
inline constexpr size_t kMaxTensors = size_t{1} << 20;
inline constexpr size_t kMaxMetadataEntries = size_t{1} << 16;
inline constexpr size_t kMaxRank = 32;

// The one header key that is not a tensor.
inline constexpr std::string_view kMetadataKey = "__metadata__";

// Bytes of a dense tensor; the empty shape is a scalar of one element. Refuses (InvalidArgument,
// naming the tensor) a rank above kMaxRank, a negative dimension, and a product above the largest
// int64. Zero dimensions are skipped in that last check, so that strides of an empty tensor
// cannot overflow either.
absl::StatusOr<uint64_t> TensorBytes(std::string_view name, FileDType dtype,
                                     absl::Span<const int64_t> shape);

// A name for an error message: quoted, control bytes and quotes escaped, and cut after 128 bytes
// (at a character's boundary), so that a hostile name cannot flood a log. `name` is valid UTF-8.
std::string QuoteName(std::string_view name);

// Any bytes for an error message: what is not printable ASCII becomes '?', cut after 200 bytes.
std::string Printable(std::string_view text);

// Shape for an error message, e.g. "[2,3]".
std::string ShapeString(absl::Span<const int64_t> shape);

}  // namespace nibble::safetensors_internal

#endif  // NIBBLE_COMMON_SAFETENSORS_LIMITS_H_
