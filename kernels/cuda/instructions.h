// Single GPU instructions that the fast kernels use and that C++ cannot express, each with a
// portable version that gives the same bits, so that the kernels' block arithmetic (block_encode.h)
// also runs and is tested on a machine without a GPU. instruction_check.cu compares them on the
// card.
//
// Pairs are two 16-bit lanes in a word, the first in the low half.
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CUDA_INSTRUCTIONS_H_
#define NIBBLE_KERNELS_CUDA_INSTRUCTIONS_H_

#include <cstdint>

#include "kernels/formats/bfloat16.h"
#include "kernels/formats/lanes.h"
#include "kernels/formats/minifloat.h"

namespace nibble::gpu {

inline constexpr uint32_t kInfinityBits = 0x7f800000u;
inline constexpr uint32_t kMagnitudeBits = 0x7fffffffu;

// |x|. The compiler folds fabsf into the instruction that uses it, but not a mask.
NIBBLE_LANES float Magnitude(float x) {
#if defined(__CUDA_ARCH__)
  return fabsf(x);
#else
  return FromBits<float>(BitsOf<float>(x) & kMagnitudeBits);
#endif
}

// Four bytes selected from the eight of (high, low), one per nibble of `selectors`: bits 0..2 are
// the byte's number, bit 3 replicates its top bit eight times instead. Nibbles above the fourth are
// ignored.
NIBBLE_LANES uint32_t Permute(uint32_t low, uint32_t high, uint32_t selectors) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selectors));
  return result;
#else
  const uint64_t bytes = (static_cast<uint64_t>(high) << 32) | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = (selectors >> (4 * i)) & 0xfu;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (selector & 7u))) & 0xffu;
    if (selector & 8u) byte = byte & 0x80u ? 0xffu : 0u;
    result |= byte << (8 * i);
  }
  return result;
#endif
}

// a · b + c as one instruction: otherwise the compiler shifts and masks, or splits 64-bit sums.
NIBBLE_LANES uint32_t MultiplyAdd(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
#else
  return a * b + c;
#endif
}
NIBBLE_LANES uint64_t MultiplyAddWide(uint32_t a, uint32_t b, uint64_t c) {
#if defined(__CUDA_ARCH__)
  uint64_t result;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(result) : "r"(a), "r"(b), "l"(c));
  return result;
#else
  return uint64_t{a} * b + c;
#endif
}

// Returns the value, but makes it opaque to the compiler, which would otherwise recompute it in
// every iteration of a loop.
template <class T>
NIBBLE_LANES T Kept(T value) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 8) {
    asm volatile("" : "+l"(value));
  } else {
    asm volatile("" : "+r"(value));
  }
#endif
  return value;
}

// a / 6, correctly rounded for a from here on (below, the remainder may not be exact): without the
// tests and the call of a general division.
inline constexpr float kSmallestDividedBySix = 0x1p-100f;
NIBBLE_LANES float DivideBySix(float a) {
#if defined(__CUDA_ARCH__)
  constexpr float kOneSixth = 1.0f / 6.0f;
  const float quotient = __fmul_rn(a, kOneSixth);
  return __fmaf_rn(__fmaf_rn(quotient, -6.0f, a), kOneSixth, quotient);
#else
  return a / 6.0f;
#endif
}

// Bits of `a` where `mask` is set, otherwise of `b`: one instruction, which the compiler does not
// find for constant masks.
NIBBLE_LANES uint32_t Select(uint32_t mask, uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(result) : "r"(mask), "r"(a), "r"(b));
  return result;
#else
  return (mask & a) | (~mask & b);
#endif
}

// The magnitude and, but for zero, the sign of the upper BF16 of a pair, which are both finite. As
// a product and sum: the units of bit operations have more to do than those of products.
NIBBLE_LANES float UpperBf16(uint32_t pair) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  // (0 · lower + 0, 1 · upper + 0): the lower half becomes +0 for either sign.
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(pair), "r"(0x3f800000u), "r"(0u));
  return FromBits<float>(result);
#else
  return FromBits<float>(pair & 0xffff0000u) + 0.0f;
#endif
}

// a · b + c rounded toward minus infinity, for positive arguments and an exact product.
NIBBLE_LANES float MultiplyAddDown(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rd(a, b, c);
#else
  const float product = a * b;
  const float sum = product + c;
  // The exact amount added by rounding to nearest (two-sum).
  const float c_part = sum - product;
  const float error = (product - (sum - c_part)) + (c - c_part);
  // The next lower positive value is the one with smaller bits.
  return error < 0.0f ? FromBits<float>(BitsOf<float>(sum) - 1) : sum;
#endif
}

// a · b clamped to [0, 1]; NaN becomes 0.
NIBBLE_LANES float MultiplySaturated(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __saturatef(__fmul_rn(a, b));
#else
  const float product = a * b;
  return product > 0.0f ? (product < 1.0f ? product : 1.0f) : 0.0f;
#endif
}

// a · b rounded toward zero, for positive arguments.
NIBBLE_LANES float MultiplyTowardZero(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rz(a, b);
#else
  const double exact = static_cast<double>(a) * static_cast<double>(b);
  const float product = static_cast<float>(exact);
  return static_cast<double>(product) > exact ? FromBits<float>(BitsOf<float>(product) - 1)
                                              : product;
#endif
}

// a · b + c with one rounding.
NIBBLE_LANES float MultiplyAdd(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

// a + b, at most c, in each 16-bit lane; sums do not overflow.
NIBBLE_LANES uint32_t AddAtMost(uint32_t a, uint32_t b, uint32_t c) {
#if defined(__CUDA_ARCH__)
  return __viaddmin_u16x2(a, b, c);
#else
  const uint32_t low = MinBits<uint32_t>((a & 0xffffu) + (b & 0xffffu), c & 0xffffu);
  const uint32_t high = MinBits<uint32_t>((a >> 16) + (b >> 16), c >> 16);
  return low | (high << 16);
#endif
}

// Two values as FP16, rounded toward zero: subnormals kept, NaN 0x7fff.
NIBBLE_LANES uint32_t HalvesTowardZero(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
#else
  const auto half = [](float x) -> uint32_t {
    const uint32_t bits = BitsOf<float>(x);
    const uint32_t magnitude = bits & kMagnitudeBits;
    if (magnitude > kInfinityBits) return 0x7fffu;
    const uint32_t sign = (bits >> 16) & 0x8000u;
    if (magnitude == kInfinityBits) return sign | 0x7c00u;
    if (magnitude >= 0x47800000u) return sign | 0x7bffu;                            // 2^16 and more
    if (magnitude >= 0x38800000u) return sign | ((magnitude - 0x38000000u) >> 13);  // 2^-14
    const float steps = FromBits<float>(magnitude) * 16777216.0f;                   // of 2^-24
    return sign | static_cast<uint32_t>(steps);
  };
  return half(first) | (half(second) << 16);
#endif
}

// Two values as BF16, rounded to nearest even. NaN stays NaN, with undefined payload.
NIBBLE_LANES uint32_t Bf16Pair(float first, float second) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(second), "f"(first));
  return result;
#else
  return (RoundToBf16Bits<float>(first) >> 16) | RoundToBf16Bits<float>(second);
#endif
}

// Pairs of BF16: the larger magnitude of each lane, NaN if there is one; the sign is undefined.
NIBBLE_LANES uint32_t LargerMagnitudes(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  const uint32_t low = MaxBits<uint32_t>(a & 0x7fffu, b & 0x7fffu);
  const uint32_t high = MaxBits<uint32_t>(a & 0x7fff0000u, b & 0x7fff0000u);
  return low | high;
#endif
}

// The squared ReLU of each lane of a pair of BF16, rounded to nearest even; NaN of NaN, with
// undefined payload. With one rounding, as two have the same result: an FP32 product of two BF16 is
// exact where it decides how the result is rounded.
NIBBLE_LANES uint32_t SquaredRelu(uint32_t pair) {
#if defined(__CUDA_ARCH__)
  uint32_t positive, result;
  asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(positive) : "r"(pair), "r"(0u));
  asm("mul.bf16x2 %0, %1, %1;" : "=r"(result) : "r"(positive));
  return result;
#else
  const auto square = [](uint32_t bits) {
    const float x = FromBits<float>(bits);
    const float positive = x < 0.0f ? 0.0f : x;
    return RoundToBf16Bits<float>(positive * positive);
  };
  return (square(pair << 16) >> 16) | square(pair & 0xffff0000u);
#endif
}

// The larger of a and |x|, NaN if there is one; a is not negative.
NIBBLE_LANES float LargerMagnitude(float a, float x) {
#if defined(__CUDA_ARCH__)
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(Magnitude(x)));
  return result;
#else
  return FromBits<float>(MaxBits<uint32_t>(BitsOf<float>(a), BitsOf<float>(x) & kMagnitudeBits));
#endif
}

// Multiplies two pairs of BF16, for exact results.
NIBBLE_LANES uint32_t MultiplyBf16Pairs(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("mul.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
#else
  const float low = FromBits<float>(a << 16) * FromBits<float>(b << 16);
  const float high = FromBits<float>(a & 0xffff0000u) * FromBits<float>(b & 0xffff0000u);
  return (BitsOf<float>(low) >> 16) | (BitsOf<float>(high) & 0xffff0000u);
#endif
}

// E4M3 code of a non-negative value, rounded to nearest even and saturating; NaN 0x7f.
NIBBLE_LANES uint32_t E4M3Code(float x) {
#if defined(__CUDA_ARCH__)
  uint32_t result;
  asm("{ .reg .b16 pair; cvt.rn.satfinite.e4m3x2.f32 pair, %1, %2; mov.b32 %0, {pair, 0}; }"
      : "=r"(result)
      : "f"(0.0f), "f"(x));
  return result;
#else
  return E4M3::Encode(x);
#endif
}

// Codes of two values, E4M3 or E5M2, in the low half of a word: rounded to nearest even and
// saturating; a NaN loses its sign.
template <class E>
NIBBLE_LANES uint32_t BytePair(float first, float second) {
  static_assert(E::kBits == 8);
#if defined(__CUDA_ARCH__)
  uint32_t result;
  if constexpr (E::kMantissa == 3) {
    asm("{ .reg .b16 pair; cvt.rn.satfinite.e4m3x2.f32 pair, %1, %2; mov.b32 %0, {pair, 0}; }"
        : "=r"(result)
        : "f"(second), "f"(first));
  } else {
    asm("{ .reg .b16 pair; cvt.rn.satfinite.e5m2x2.f32 pair, %1, %2; mov.b32 %0, {pair, 0}; }"
        : "=r"(result)
        : "f"(second), "f"(first));
  }
  return result;
#else
  return E::Encode(first) | (E::Encode(second) << 8);
#endif
}

// The values of two codes of finite numbers; bits above the low half do not count.
template <class E>
NIBBLE_LANES void ValuesOfBytes(uint32_t pair, float& first, float& second) {
#if defined(__CUDA_ARCH__)
  if constexpr (E::kMantissa == 3) {
    asm("{ .reg .b16 pair, low, high; .reg .b32 halves; cvt.u16.u32 pair, %2;"
        " cvt.rn.f16x2.e4m3x2 halves, pair; mov.b32 {low, high}, halves;"
        " cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(first), "=f"(second)
        : "r"(pair));
  } else {
    asm("{ .reg .b16 pair, low, high; .reg .b32 halves; cvt.u16.u32 pair, %2;"
        " cvt.rn.f16x2.e5m2x2 halves, pair; mov.b32 {low, high}, halves;"
        " cvt.f32.f16 %0, low; cvt.f32.f16 %1, high; }"
        : "=f"(first), "=f"(second)
        : "r"(pair));
  }
#else
  first = E::template Decode<float>(pair & 0xffu);
  second = E::template Decode<float>((pair >> 8) & 0xffu);
#endif
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_INSTRUCTIONS_H_
