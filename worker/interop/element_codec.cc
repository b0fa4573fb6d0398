#include "worker/interop/element_codec.h"

#include <bit>
#include <cstring>

#include "kernels/formats/bfloat16.h"

namespace nibble {
namespace {

// Files are little-endian, and so is every machine this is built for.
static_assert(std::endian::native == std::endian::little);

template <class T>
T Load(const std::byte* bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

bool IsWeightType(FileDType dtype) {
  return dtype == FileDType::kF32 || dtype == FileDType::kBF16 || dtype == FileDType::kF16;
}

float DecodeF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) {
    return std::bit_cast<float>(sign | ((exponent + 127 - 15) << 23) | (fraction << 13));
  }
  // Subnormal: so many 2^-24.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

float DecodeElement(FileDType dtype, const std::byte* bytes, size_t index) {
  if (dtype == FileDType::kF32) return Load<float>(bytes, index);
  const auto bits = Load<uint16_t>(bytes, index);
  return dtype == FileDType::kBF16 ? DecodeBf16(bits) : DecodeF16(bits);
}

void AppendElements(FileDType dtype, absl::Span<const float> values, std::vector<std::byte>& out) {
  const size_t begin = out.size();
  if (dtype == FileDType::kF32) {
    out.resize(begin + values.size() * sizeof(float));
    std::memcpy(out.data() + begin, values.data(), values.size() * sizeof(float));
    return;
  }
  out.resize(begin + values.size() * sizeof(uint16_t));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = EncodeBf16(values[i]);
    std::memcpy(out.data() + begin + i * sizeof(bits), &bits, sizeof(bits));
  }
}

}  // namespace nibble
