// BF16: the upper half of an FP32, rounded to nearest even. NaN stays NaN (quiet).
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_BFLOAT16_H_
#define NIBBLE_KERNELS_FORMATS_BFLOAT16_H_

#include <cstdint>

#include "kernels/formats/lanes.h"

namespace nibble {

// The FP32 bits of x rounded to BF16, with the lower half zero. Any x except NaN (a NaN whose lower
// half is zero stays NaN).
template <class F>
NIBBLE_LANES LaneU<F> RoundNumberToBf16Bits(F x) {
  const LaneU<F> bits = BitsOf<F>(x);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
}

// The same for |x| from 2^-126 to 2^110, in fewer steps: adding 1.5 · 2^(e+16) gives the sum a last
// place of 2^(e-7), that of BF16 at |x|, so that the adder rounds; the added number's last place is
// even, so that ties round to even. Smaller numbers are returned unchanged.
template <class F>
NIBBLE_LANES F RoundNormalToBf16(F x) {
  const F power = FromBits<F>(BitsOf<F>(x) & 0x7f800000u);
  const F factor = F{} + 98304.0f;
  return SubtractExactProduct<F>(power, factor, AddExactProduct<F>(power, factor, x));
}

// The same for every x, as bits: NaN becomes the quiet NaN.
template <class F>
NIBBLE_LANES LaneU<F> RoundToBf16Bits(F x) {
  using U = LaneU<F>;
  const U bits = BitsOf<F>(x);
  const U rounded = RoundNumberToBf16Bits<F>(x);
  const U nan = SplatBits<U>(0x7fc00000u);
  return (bits & 0x7fffffffu) > SplatBits<U>(0x7f800000u) ? nan : rounded;
}

NIBBLE_LANES uint16_t EncodeBf16(float x) {
  return static_cast<uint16_t>(RoundToBf16Bits<float>(x) >> 16);
}
NIBBLE_LANES float DecodeBf16(uint16_t code) {
  return FromBits<float>(static_cast<uint32_t>(code) << 16);
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_BFLOAT16_H_
