// E8M0: powers of two 2^(code-127), the block scale of the MX formats. Code 255 is NaN and is never
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

  // The smallest power of two that is at least amax / max, computed exactly (without division):
  // with max = 1.m · 2^p, compares amax's mantissa with max's. `amax_bits` is not NaN.
  template <class Element, class F = float>
  NIBBLE_LANES static LaneU<F> EncodeRoundedUp(LaneU<F> amax_bits) {
    using U = LaneU<F>;
    constexpr uint32_t kMaxExponent = (Element::kMaxBits >> 23) - 127;
    constexpr uint32_t kMaxMantissa = Element::kMaxBits & 0x7fffffu;
    const U exponent =
        (amax_bits >> 23) + OneWhere<U>((amax_bits & 0x7fffffu) > SplatBits<U>(kMaxMantissa));
    const U code = MaxBits<U>(exponent, SplatBits<U>(kMaxExponent)) - kMaxExponent;
    return MinBits<U>(code, SplatBits<U>(254));
  }

  template <class F = float>
  NIBBLE_LANES static F Decode(LaneU<F> code) {
    using U = LaneU<F>;
    return FromBits<F>(code == U{} ? SplatBits<U>(0x00400000u) : U(code << 23));
  }
  // 1 / Decode(code), exact.
  template <class F = float>
  NIBBLE_LANES static F Reciprocal(LaneU<F> code) {
    return Decode<F>(254u - code);
  }
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_E8M0_H_
