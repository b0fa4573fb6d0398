// Sixteen FP32 lanes and the functions of the layer kernels on them. Files that include this are
// compiled once per instruction set (isa.bzl), each in its own namespace (NIBBLE_ISA) and with
// contraction on, so that a * b + c is one fused operation where the processor has it. Layer
// kernels promise the same bits run to run and for any number of threads, not across processors:
// that promise belongs to the formats (kernels/formats).
//
// Everything is forced inline: an out-of-line copy could be merged by the linker across sets.
// vec_lanes.h lists the operations that vectors support.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_VEC_H_
#define NIBBLE_KERNELS_CPU_LAYERS_VEC_H_

#include <cstdint>
#include <cstring>

#include "kernels/cpu/layers/vec_lanes.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

// x − 0 is x to the bit, also for minus zero, which x + 0 is not; it costs no subtraction.
NIBBLE_INLINE Vec Splat(float x) { return x - Vec{}; }

// Any alignment.
NIBBLE_INLINE Vec Load(const float* p) {
  Vec v;
  LoadTo(v, p);
  return v;
}
NIBBLE_INLINE Vec Load(const uint16_t* p) {
  VecU v;
  LoadTo(v, p);
  return FromBits(v << 16);
}
NIBBLE_INLINE VecU Load(const uint32_t* p) {
  VecU v;
  LoadTo(v, p);
  return v;
}
NIBBLE_INLINE void Store(float* p, Vec v) { StoreFrom(v, p); }
NIBBLE_INLINE void Store(uint32_t* p, VecU v) { StoreFrom(v, p); }
// To nearest even; NaN stays NaN.
NIBBLE_INLINE VecU RoundBf16(Vec v) {
  const VecU bits = Bits(v);
  const VecU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return Select(v == v, rounded, (bits >> 16) | 0x40u);
}
NIBBLE_INLINE void Store(uint16_t* p, Vec v) { StoreFrom(RoundBf16(v), p); }
// The value that Store would write.
template <class T>
NIBBLE_INLINE Vec Rounded(Vec v) {
  if constexpr (sizeof(T) == 2) {
    return FromBits(RoundBf16(v) << 16);
  } else {
    return v;
  }
}

// The first n elements, 1 to 15; the other lanes are zero, and memory past them is not touched.
NIBBLE_INLINE Vec LoadPart(const float* p, int64_t n) {
#if defined(__AVX512F__)
  return reinterpret_cast<Vec>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p));
#else
  float padded[kVec] = {};
  std::memcpy(padded, p, n * sizeof(float));
  return Load(padded);
#endif
}
NIBBLE_INLINE Vec LoadPart(const uint16_t* p, int64_t n) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  const __m256i h = _mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << n) - 1), p);
  return FromBits(reinterpret_cast<VecU>(_mm512_cvtepu16_epi32(h)) << 16);
#else
  uint16_t padded[kVec] = {};
  std::memcpy(padded, p, n * sizeof(uint16_t));
  return Load(padded);
#endif
}
template <class T>
NIBBLE_INLINE void StorePart(T* p, Vec v, int64_t n) {
  T padded[kVec];
  Store(padded, v);
  std::memcpy(p, padded, n * sizeof(T));
}

// The first n lanes of v, `rest` after them.
NIBBLE_INLINE Vec FirstLanes(Vec v, int64_t n, Vec rest = Vec{}) {
  static constexpr float kLane[kVec] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return Select(Load(kLane) < static_cast<float>(n), v, rest);
}

// If one is NaN, the second operand.
NIBBLE_INLINE Vec Max(Vec a, Vec b) { return Select(a > b, a, b); }
NIBBLE_INLINE Vec Abs(Vec a) { return FromBits(Bits(a) & 0x7fffffffu); }

// Correctly rounded.
NIBBLE_INLINE Vec Sqrt(Vec v) { return SqrtOf(v); }

// In a fixed order: halves, quarters, ….
NIBBLE_INLINE float Sum(Vec v) { return SumOf(Halves(v)); }
NIBBLE_INLINE float Largest(Vec v) { return LargestOf(Halves(v)); }

// e^x within 3 units in the last place for results in the normal range; 0 below it, +inf above,
// NaN to NaN. x = n ln 2 + r with |r| <= ln 2 / 2, and a degree-6 polynomial for e^r.
NIBBLE_INLINE Vec Exp(Vec x) {
  const Vec shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 · 2^23: n in the low bits
  const Vec n = shifted - 12582912.0f;
  Vec r = x - n * 0.693145751953125f;
  r = r - n * 1.428606820309417e-6f;
  Vec p = Splat(1.3981999507e-3f);
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  // p · 2^n, by adding to the exponent's bits, if both stay in range: −126 ln 2 to ln of the
  // largest float.
  const Vec result = FromBits(Bits(p) + (Bits(shifted) << 23));
  const Vec above = x + __builtin_inff();
  return Select(x < -0x1.5d589ep+6f, Vec{}, Select(x <= 88.72283f, result, above));
}

// Within 5 units in the last place if e^−x is finite; otherwise 0.
NIBBLE_INLINE Vec Sigmoid(Vec x) { return 1.0f / (1.0f + Exp(-x)); }
// x σ(x).
NIBBLE_INLINE Vec Silu(Vec x) { return x / (1.0f + Exp(-x)); }

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_VEC_H_
