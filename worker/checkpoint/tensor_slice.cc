#include "worker/checkpoint/tensor_slice.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/safetensors/dtype.h"

namespace nibble {

absl::StatusOr<int64_t> ShapeElements(std::span<const int64_t> shape) {
  if (static_cast<int64_t>(shape.size()) > TensorSlice::kMaxDimensions) {
    return absl::InvalidArgumentError(absl::StrCat("shape has ", shape.size(),
                                                   " dimensions; at most ",
                                                   TensorSlice::kMaxDimensions, " are allowed"));
  }
  int64_t elements = 1;
  bool empty = false;
  for (const int64_t size : shape) {
    if (size < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape [", absl::StrJoin(shape, ", "), "] has a negative dimension"));
    }
    if (size == 0) {
      empty = true;
    } else if (elements > TensorSlice::kMaxBytes / size) {
      return absl::InvalidArgumentError(absl::StrCat("shape [", absl::StrJoin(shape, ", "),
                                                     "] has more than ", TensorSlice::kMaxBytes,
                                                     " elements"));
    } else {
      elements *= size;
    }
  }
  return empty ? 0 : elements;
}

absl::Status CheckSlice(const TensorSlice& slice) {
  const auto bad = [&slice](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", absl::CHexEscape(slice.name.substr(0, 64)), "\": ", what...));
  };
  if (slice.name.empty() || static_cast<int64_t>(slice.name.size()) > TensorSlice::kMaxName) {
    return bad("name has ", slice.name.size(), " characters; 1 to ", TensorSlice::kMaxName,
               " are allowed");
  }
  const auto unprintable = [](char c) { return c < ' ' || c > '~'; };
  if (std::any_of(slice.name.begin(), slice.name.end(), unprintable)) {
    return bad("name has a character that is not printable ASCII");
  }
  const int element = FileDTypeSize(slice.dtype);
  if (element == 0) return bad("dtype ", static_cast<int>(slice.dtype), " does not exist");
  const absl::StatusOr<int64_t> elements = ShapeElements(slice.shape);
  if (!elements.ok()) return bad(elements.status().message());
  if (*elements > TensorSlice::kMaxBytes / element) {
    return bad("has ", *elements, " elements of ", element, " bytes, more than ",
               TensorSlice::kMaxBytes, " bytes");
  }
  if (slice.first < 0 || slice.count < 0 || slice.first > *elements ||
      slice.count > *elements - slice.first) {
    return bad("elements [", slice.first, ", ", slice.first, " + ", slice.count,
               ") are not inside [0, ", *elements, ")");
  }
  return absl::OkStatus();
}

int64_t SliceBytes(const TensorSlice& slice) { return slice.count * FileDTypeSize(slice.dtype); }

int64_t ChunksOf(int64_t bytes, int64_t chunk_bytes) {
  return bytes / chunk_bytes + (bytes % chunk_bytes != 0 ? 1 : 0);
}

}  // namespace nibble
