// Numbers in the types of weight files, to FP32 and back.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_INTEROP_ELEMENT_CODEC_H_
#define NIBBLE_WORKER_INTEROP_ELEMENT_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/safetensors/dtype.h"

namespace nibble {

// F32, BF16 and F16: all their values are FP32 values.
bool IsWeightType(FileDType dtype);

// IEEE half precision, infinities and NaN included.
float DecodeF16(uint16_t bits);

// Element `index` of little-endian bytes at any address; `dtype` is a weight type.
float DecodeElement(FileDType dtype, const std::byte* bytes, size_t index);

// Appends `values` as F32 or BF16 (rounded to nearest even).
void AppendElements(FileDType dtype, absl::Span<const float> values, std::vector<std::byte>& out);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_ELEMENT_CODEC_H_
