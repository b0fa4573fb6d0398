// The JSON header of a safetensors file as plain values. ParseHeader checks the grammar: keys,
// types and counts. It does not know the payload; reader.h checks the offsets against it.
//
// Ownership: the result owns copies of everything.
// Thread-safety: a pure function.
//
// Memory: a small multiple of the text's size (measured: below seven) for any text. The parser
// streams (no document tree is built), nesting beyond the grammar's is refused, and the counts are
// bounded by limits.h.

#ifndef NIBBLE_COMMON_SAFETENSORS_HEADER_H_
#define NIBBLE_COMMON_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/safetensors/dtype.h"

namespace nibble::safetensors_internal {

struct HeaderEntry {
  std::string name;
  FileDType dtype = FileDType::kU8;
  std::vector<int64_t> shape;
  // As in the header, unchecked: begin may lie above end.
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Header {
  std::vector<HeaderEntry> entries;  // in the header's order; names may still repeat
  std::map<std::string, std::string, std::less<>> metadata;
};

// Refuses, as InvalidArgument naming the tensor and the offending value:
//   - text that does not begin with '{', is not JSON, not UTF-8, or contains a NUL byte;
//   - __metadata__ that is not an object of strings, or repeated keys in it or of it;
//   - an entry with a missing, repeated or unknown key, or a value of the wrong type;
//   - a dtype that is not known, a number that is not an integer from 0 to the largest int64
//     (shape) or uint64 (data_offsets), data_offsets without exactly two numbers;
//   - more tensors, metadata entries or dimensions than limits.h allows.
absl::StatusOr<Header> ParseHeader(std::string_view text);

}  // namespace nibble::safetensors_internal

#endif  // NIBBLE_COMMON_SAFETENSORS_HEADER_H_
