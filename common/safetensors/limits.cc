#include "common/safetensors/limits.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/safetensors/dtype.h"

namespace nibble::safetensors_internal {

absl::StatusOr<uint64_t> TensorBytes(std::string_view name, FileDType dtype,
                                     absl::Span<const int64_t> shape) {
  if (shape.size() > kMaxRank) {
    return absl::InvalidArgumentError(absl::StrFormat("tensor %s: rank %d is above the bound of %d",
                                                      QuoteName(name), shape.size(), kMaxRank));
  }
  constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
  const uint64_t element_size = FileDTypeSize(dtype);
  if (element_size == 0) {
    return absl::InvalidArgumentError(absl::StrFormat("tensor %s: dtype value %d is not known",
                                                      QuoteName(name), static_cast<int>(dtype)));
  }
  uint64_t bytes = element_size;
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s: dimension %d of shape %s is negative, the least is 0",
                          QuoteName(name), dim, ShapeString(shape)));
    }
    if (dim == 0) {
      empty = true;
      continue;
    }
    if (bytes > kMax / static_cast<uint64_t>(dim)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %s: shape %s of %s needs more than the bound of %d bytes",
                          QuoteName(name), ShapeString(shape), FileDTypeName(dtype), kMax));
    }
    bytes *= static_cast<uint64_t>(dim);
  }
  return empty ? 0 : bytes;
}

std::string QuoteName(std::string_view name) {
  constexpr size_t kMaxShown = 128;
  const size_t full_size = name.size();
  if (full_size > kMaxShown) {
    size_t end = kMaxShown;
    while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
    name = name.substr(0, end);
  }
  std::string quoted =
      absl::StrCat("\"", absl::Utf8SafeCEscape(absl::string_view(name.data(), name.size())), "\"");
  if (name.size() < full_size) absl::StrAppend(&quoted, "... (", full_size, " bytes)");
  return quoted;
}

std::string Printable(std::string_view text) {
  constexpr size_t kMaxShown = 200;
  std::string out(text.substr(0, kMaxShown));
  for (char& c : out) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  if (text.size() > kMaxShown) out += "...";
  return out;
}

std::string ShapeString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

}  // namespace nibble::safetensors_internal
