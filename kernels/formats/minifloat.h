// The small floats E2M1, E4M3 and E5M2: rounding to nearest even, stochastic rounding, decoding.
// One definition for scalar, vector and device code (see lanes.h). All arithmetic is FP32 with
// subnormals and without contraction; every step below is exact except the one that rounds.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_MINIFLOAT_H_
#define NIBBLE_KERNELS_FORMATS_MINIFLOAT_H_

#include <cstdint>

#include "kernels/formats/lanes.h"

namespace nibble {

// The result of rounding: the code without its sign bit (in the low bits; the bits above are
// undefined until masked with kMagnitudeMask), and the magnitude of the code.
template <class F>
struct RoundedLanes {
  LaneU<F> code;
  F magnitude;
};

// kMaxBits: the FP32 bits of the largest finite value; values beyond it saturate.
template <int kExponentBits, int kMantissaBits, uint32_t kMaxFloatBits, uint32_t kNan>
struct Minifloat {
  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static constexpr int kMantissa = kMantissaBits;
  static constexpr uint32_t kSignBit = 1u << (kBits - 1);
  static constexpr uint32_t kMagnitudeMask = kSignBit - 1;
  static constexpr uint32_t kMaxBits = kMaxFloatBits;
  static constexpr uint32_t kNanCode = kNan;
  // Biased FP32 exponent of the smallest normal value; below it the spacing stays constant.
  static constexpr uint32_t kMinExponent = 127 + 1 - ((1 << (kExponentBits - 1)) - 1);

  // Minus the code of the smallest exponent field, modulo the codes: see Nearest.
  static constexpr uint32_t kStepOffset = (0u - (kMinExponent << kMantissaBits)) & kMagnitudeMask;
  static_assert(kStepOffset % 2 == 0);

  NIBBLE_LANES static constexpr float Max() { return __builtin_bit_cast(float, kMaxFloatBits); }

  // |x| of any value except NaN, given as bits. Adding 2^(e+23-M) gives the sum a last place of
  // 2^(e-M), the grid's spacing at |x|, so that the adder itself rounds to nearest even and the
  // sum's low bits count grid steps; adding the exponent's bits turns steps into the code. An even
  // number of steps, added beforehand, cancels the exponents' offset in the bits that count.
  template <class F>
  NIBBLE_LANES static RoundedLanes<F> Nearest(LaneU<F> magnitude_bits) {
    using U = LaneU<F>;
    const U t = MinBits<U>(magnitude_bits, SplatBits<U>(kMaxBits));
    const U exponent = MaxBits<U>(t, SplatBits<U>(kMinExponent << 23)) & 0x7f800000u;
    const U magic = exponent + (((23u - kMantissaBits) << 23) + kStepOffset);
    const F sum = FromBits<F>(t) + FromBits<F>(magic);
    return {BitsOf<F>(sum) + (exponent >> (23 - kMantissaBits)), sum - FromBits<F>(magic)};
  }

  // The largest power of two up to |x|, but at least the smallest whose binade has the spacing at
  // |x|.
  template <class F>
  NIBBLE_LANES static F BinadeOf(F x) {
    return LargerNumber<F>(FromBits<F>(BitsOf<F>(x) & 0x7f800000u),
                           F{} + BitCast<float>(kMinExponent << 23));
  }

  // Nearest without codes, in fewer steps: the same sum with the same last place, without the
  // offset that makes its low bits count codes, and with half of it to spare, so that x may be
  // negative. Results that round to zero are +0. |x| must not round to more than Max().
  template <class F>
  NIBBLE_LANES static F NearestValue(F x) {
    const F binade = BinadeOf<F>(x);
    const F to_last_place = F{} + 1.5f * BitCast<float>((127u + 23u - kMantissaBits) << 23);
    return SubtractExactProduct<F>(binade, to_last_place,
                                   AddExactProduct<F>(binade, to_last_place, x));
  }

  // Adds random/256 of the spacing at |x| and rounds down to the grid; `random` in 0..255.
  template <class F>
  NIBBLE_LANES static RoundedLanes<F> Stochastic(LaneU<F> magnitude_bits, LaneU<F> random) {
    using U = LaneU<F>;
    const U min_exponent = SplatBits<U>(kMinExponent << 23);
    const U t = MinBits<U>(magnitude_bits, SplatBits<U>(kMaxBits));
    const U spacing = (MaxBits<U>(t, min_exponent) & 0x7f800000u) -
                      (static_cast<uint32_t>(kMantissaBits + 8) << 23);  // of the grid, over 256
    const F shifted = FromBits<F>(t) + ToFloat<F>(BitCast<LaneI<F>>(random)) * FromBits<F>(spacing);
    if constexpr (kMantissaBits == 1) {
      // The largest value is the last of its binade, so values shifted past it still round down to
      // it; and there is only one subnormal step, so the bits above the mantissa are the code,
      // except for values below the smallest normal one.
      const U bits = BitsOf<F>(shifted);
      const LaneI<F> normal = BitCast<LaneI<F>>((bits >> (23 - kMantissaBits)) -
                                                ((kMinExponent - 1u) << kMantissaBits));
      const U half_normal = SplatBits<U>((kMinExponent - 1u) << 23);
      const LaneI<F> subnormal = BitCast<LaneI<F>>(OneWhere<U>(bits >= half_normal));
      const U code = BitCast<U>(normal > subnormal ? normal : subnormal);
      return {code, Decode<F>(code)};
    } else {
      const U u = MinBits<U>(BitsOf<F>(shifted), SplatBits<U>(kMaxBits));
      const U exponent = MaxBits<U>(u, min_exponent) & 0x7f800000u;
      const U per_step = SplatBits<U>((254u + kMantissaBits) << 23) - exponent;  // 2^(M-e)
      const LaneI<F> steps = Truncate<F>(FromBits<F>(u) * FromBits<F>(per_step));
      const U step = exponent - (static_cast<uint32_t>(kMantissaBits) << 23);
      return {BitCast<U>(steps) + ((exponent >> (23 - kMantissaBits)) + kStepOffset),
              ToFloat<F>(steps) * FromBits<F>(step)};
    }
  }

  // The amount that Stochastic adds for a random byte, for the binade of |x|: byte/256 · 2^-M. The
  // byte, number 0 or 1 of `word`, becomes the last places of a power of two, which is then
  // subtracted.
  template <class F>
  NIBBLE_LANES static F RandomPart(LaneU<F> word, int byte) {
    const uint32_t power = (127u + 23u - (kMantissaBits + 8u) - 8u * byte) << 23;
    const LaneU<F> bits = (word & (0xffu << (8 * byte))) | power;
    return FromBits<F>(bits) - BitCast<float>(power);
  }

  // The magnitude of Stochastic, in fewer steps; `magnitude` is at most Max(), `random` a
  // RandomPart. The added amount is less than one spacing at `magnitude`: the sum may reach the
  // first number of the next binade but not its second, so rounding down to a multiple of that
  // spacing is rounding down to the grid, and the adder does it in round-toward-zero mode.
  template <class F>
  NIBBLE_LANES static F StochasticMagnitude(F magnitude, F random) {
    const F binade = BinadeOf<F>(magnitude);
    const F to_last_place = F{} + BitCast<float>((127u + 23u - kMantissaBits) << 23);
    const F shifted = AddExactProduct<F>(random, binade, magnitude);
    return SubtractExactProduct<F>(binade, to_last_place,
                                   AddExactProductTowardZero<F>(binade, to_last_place, shifted));
  }

  // Scalar versions, with sign and NaN.
  NIBBLE_LANES static uint32_t Encode(float x) {
    const uint32_t bits = BitsOf<float>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return kNanCode;
    return (Nearest<float>(bits & 0x7fffffffu).code & kMagnitudeMask) |
           ((bits >> 31) ? kSignBit : 0u);
  }
  NIBBLE_LANES static uint32_t EncodeStochastic(float x, uint32_t random) {
    const uint32_t bits = BitsOf<float>(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return kNanCode;
    return (Stochastic<float>(bits & 0x7fffffffu, random).code & kMagnitudeMask) |
           ((bits >> 31) ? kSignBit : 0u);
  }

  // The code with its sign, and the magnitude of its value. A NaN keeps no sign; E2M1 makes it +6,
  // the others keep it, so that it appears in everything computed from it. `random` in 0..255.
  struct Signed {
    uint32_t code;
    float magnitude;
  };
  NIBBLE_LANES static Signed Round(float x, bool stochastic, uint32_t random) {
    const uint32_t bits = BitsOf<float>(x) & 0x7fffffffu;
    if (bits > 0x7f800000u) return {kNanCode, kBits == 4 ? Max() : x};
    const RoundedLanes<float> rounded =
        stochastic ? Stochastic<float>(bits, random) : Nearest<float>(bits);
    return {(rounded.code & kMagnitudeMask) | (BitsOf<float>(x) >> 31 ? kSignBit : 0u),
            rounded.magnitude};
  }

  // Lanes of codes to values. The caller must exclude codes of NaN and infinity: quantisers never
  // write them for finite input.
  template <class F>
  NIBBLE_LANES static F Decode(LaneU<F> code) {
    using U = LaneU<F>;
    const U magnitude = code & kMagnitudeMask;
    const U sign = (code & kSignBit) << (32 - kBits);
    // A subnormal code c is c steps of 2^(min-M). The normal case reads the bits in place.
    const U normal = (magnitude << (23 - kMantissaBits)) + ((kMinExponent - 1u) << 23);
    const F subnormal = ToFloat<F>(BitCast<LaneI<F>>(magnitude)) *
                        BitCast<float>((kMinExponent - kMantissaBits) << 23);
    const U bits = magnitude < SplatBits<U>(1u << kMantissaBits) ? BitsOf<F>(subnormal) : normal;
    return FromBits<F>(bits | sign);
  }
};

// ±{0, .5, 1, 1.5, 2, 3, 4, 6}. Has no NaN: NaN becomes +6, so callers check for finite values
// before.
using E2M1 = Minifloat<2, 1, 0x40c00000u, 0x7u>;
// Largest 448; no infinity.
using E4M3 = Minifloat<4, 3, 0x43e00000u, 0x7fu>;
// Largest 57344.
using E5M2 = Minifloat<5, 2, 0x47600000u, 0x7fu>;

// Whether a code is not a finite number (E4M3's NaN; E5M2's infinities and NaN).
NIBBLE_LANES bool IsNonFiniteE4M3(uint32_t code) { return (code & 0x7fu) == 0x7fu; }
NIBBLE_LANES bool IsNonFiniteE5M2(uint32_t code) { return (code & 0x7fu) >= 0x7cu; }

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_MINIFLOAT_H_
