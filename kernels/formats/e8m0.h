// E8M0: powers of two 2^(code-127), the block scale of the MX formats. 255 is NaN and never
// written.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_E8M0_H_
#define NIBBLE_KERNELS_FORMATS_E8M0_H_

#include <cstdint>

#include "kernels/formats/lanes.h"

namespace nibble {

struct E8M0 {
  static constexpr uint32_t kNanCode = 255;

  // The smallest power of two that is at least amax / max, decided exactly (no division): with
  // max = 1.m · 2^p, compare amax's mantissa with max's. `amax_bits` is not NaN.
  template <class Element>
  NIBBLE_LANES static uint32_t EncodeRoundedUp(uint32_t amax_bits) {
    constexpr uint32_t kMaxExponent = (Element::kMaxBits >> 23) - 127;
    constexpr uint32_t kMaxMantissa = Element::kMaxBits & 0x7fffffu;
    const uint32_t exponent = (amax_bits >> 23) + ((amax_bits & 0x7fffffu) > kMaxMantissa ? 1 : 0);
    const uint32_t code = exponent > kMaxExponent ? exponent - kMaxExponent : 0;
    return code < 254 ? code : 254;
  }

  NIBBLE_LANES static float Decode(uint32_t code) {
    return FromBits<float>(code == 0 ? 0x00400000u : code << 23);
  }
  // 1 / Decode(code), exact.
  NIBBLE_LANES static float Reciprocal(uint32_t code) { return Decode(254u - code); }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_E8M0_H_
