// Vector functions of the attention kernels: powers of two, visible columns, and stores into packed
// operands. Included by each instruction set's table.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_VEC_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_VEC_H_

#include "kernels/cpu/layers/vec.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cpu/layers/attention_kernels.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

// 2^f for f in [0, 1], relative error 3e-6 for BF16 results, 1.5e-7 for FP32; 1 at 0.
template <class T>
NIBBLE_INLINE Vec Exp2OfFraction(Vec f) {
  if constexpr (sizeof(T) == 2) {
    Vec p = Splat(0.013426683843135834f);
    p = p * f + 0.052242472767829895f;
    p = p * f + 0.241280198097229f;
    p = p * f + 0.6930448412895203f;
    return p * f + 1.0f;
  } else {
    Vec p = Splat(0.0018671300495043397f);
    p = p * f + 0.009017030708491802f;
    p = p * f + 0.05579991266131401f;
    p = p * f + 0.24016444385051727f;
    p = p * f + 0.6931512951850891f;
    return p * f + 1.0f;
  }
}

// 2^x; 0 below kSmallestLog2, +inf from 128 on, NaN to NaN.
template <class T>
NIBBLE_INLINE Vec Exp2(Vec x) {
#if defined(__AVX512F__)
  constexpr int kFractionAboveFloor = 0x09;
  const __m512 v = reinterpret_cast<__m512>(x);
  const Vec f = reinterpret_cast<Vec>(_mm512_reduce_ps(v, kFractionAboveFloor));
  const __mmask16 counts = _mm512_cmp_ps_mask(v, _mm512_set1_ps(kSmallestLog2), _CMP_NLT_UQ);
  // Scales by 2^floor(v).
  return reinterpret_cast<Vec>(
      _mm512_maskz_scalef_ps(counts, reinterpret_cast<__m512>(Exp2OfFraction<T>(f)), v));
#else
  const Vec low = Select(x < kSmallestLog2, Splat(kSmallestLog2), x);
  const Vec clamped = Select(low > 128.0f, Splat(128.0f), low);
  // The last bits of the sum are floor(clamped), or one less if that is an integer.
  const Vec shifted = (clamped - 0.5f) + 12582912.0f;  // 1.5 · 2^23
  const Vec f = clamped - (shifted - 12582912.0f);
  const Vec scaled = FromBits(Bits(Exp2OfFraction<T>(f)) + (Bits(shifted) << 23));
  return Select(x == x, Select(x < kSmallestLog2, Vec{}, scaled), x);
#endif
}

// ln x for x from √½ on; NaN for anything else. A softmax's sum includes its largest term, which is
// 1.
NIBBLE_INLINE Vec LogOfSum(Vec x) {
  constexpr uint32_t kSqrtHalf = 0x3f3504f3u;
  // x = 2^e · m with m in [√½, √2); e from the last bits of 2^23 + e.
  const VecU above = Bits(x) - kSqrtHalf;
  const Vec e = FromBits((above >> 23) | 0x4b000000u) - 8388608.0f;
  const Vec m = FromBits((above & 0x007fffffu) + kSqrtHalf);
  // ln m = 2 artanh((m − 1) / (m + 1)).
  const Vec t = (m - 1.0f) / (m + 1.0f);
  const Vec t2 = t * t;
  Vec series = t2 * (1.0f / 9) + 1.0f / 7;
  series = series * t2 + 1.0f / 5;
  series = series * t2 + 1.0f / 3;
  series = (series * t2 + 1.0f) * t * 2.0f;
  constexpr float kLn2 = 0.693147180559945f;
  return Select(x > 0.707f, e * kLn2 + series, Splat(std::numeric_limits<float>::quiet_NaN()));
}

// The columns [first, end) of a block that one row attends to, within the strip's [from, to).
struct Visible {
  int first, end;
};
NIBBLE_INLINE Visible VisibleOf(const StripMask& mask, int row) {
  if (row >= mask.rows) return {mask.from, mask.from};
  const int64_t begin = mask.doc_begin == nullptr ? 0 : mask.doc_begin[row];
  const int64_t first = std::max<int64_t>(mask.from, begin - mask.first_key);
  const int64_t end = std::min<int64_t>(mask.to, mask.first_query + row + 1 - mask.first_key);
  return {static_cast<int>(first), static_cast<int>(std::max(first, end))};
}
// Whether every row attends to every key of the block, as in most strips of a long sequence.
NIBBLE_INLINE bool SeesWholeBlock(const StripMask& mask) {
  const int64_t last_begin = mask.doc_begin == nullptr ? 0 : mask.doc_begin[mask.rows - 1];
  return mask.rows == kStrip && mask.from == 0 && mask.to == kKeyBlock &&
         last_begin <= mask.first_key && mask.first_query + 1 >= mask.first_key + kKeyBlock;
}

// Calls hidden, edge or whole for every chunk of kChunk columns in [from, to), depending on whether
// none, some or all of its columns are visible.
inline constexpr int kChunk = 2 * kVec;
template <class Hidden, class Edge, class Whole>
NIBBLE_INLINE void ForChunks(int from, int to, Visible visible, Hidden&& hidden, Edge&& edge,
                             Whole&& whole) {
  int c = from;
  if (visible.first >= visible.end) {
    for (; c < to; c += kChunk) hidden(c);
    return;
  }
  for (; c + kChunk <= visible.first; c += kChunk) hidden(c);
  if (c < visible.first) {
    edge(c);
    c += kChunk;
  }
  for (; c + kChunk <= visible.end; c += kChunk) whole(c);
  if (c < visible.end) {
    edge(c);
    c += kChunk;
  }
  for (; c < to; c += kChunk) hidden(c);
}
// The lanes of columns c, c + 1, … that the row attends to; `other` in the others.
NIBBLE_INLINE Vec Masked(Visible v, int c, Vec x, Vec other) {
  static constexpr float kLane[kVec] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vec lane = Load(kLane);
  const Vec late = Select(lane < static_cast<float>(v.end - c), x, other);
  return Select(lane < static_cast<float>(v.first - c), other, late);
}

#if defined(__AVX512BF16__)
// a rounded in the low sixteen elements, b in the high ones.
NIBBLE_INLINE __m512i RoundPair(Vec a, Vec b) {
  return reinterpret_cast<__m512i>(
      _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(a)));
}
// Element i of the low half, element i of the high half, ….
NIBBLE_INLINE __m512i InterleaveHalves(__m512i pair) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), pair);
}
#endif

// Thirty-two consecutive BF16.
NIBBLE_INLINE void StorePair(uint16_t* to, Vec a, Vec b) {
#if defined(__AVX512BF16__)
  _mm512_store_si512(to, RoundPair(a, b));
#else
  Store(to, a);
  Store(to + kVec, b);
#endif
}
NIBBLE_INLINE void StorePair(float* to, Vec a, Vec b) {
  Store(to, a);
  Store(to + kVec, b);
}

// Two rows of depth (even, odd) × 32 columns (at c and c + 16) into a packed b, the column groups
// `group` apart.
NIBBLE_INLINE void StoreRowsOfB(uint16_t* to, int64_t group, const Vec (&even)[2],
                                const Vec (&odd)[2]) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
#if defined(__AVX512BF16__)
    _mm512_store_si512(to + i * group, InterleaveHalves(RoundPair(even[i], odd[i])));
#else
    Store(reinterpret_cast<uint32_t*>(to + i * group),
          RoundBf16(even[i]) | (RoundBf16(odd[i]) << 16));
#endif
  }
}
NIBBLE_INLINE void StoreRowsOfB(float* to, int64_t group, const Vec (&even)[2],
                                const Vec (&odd)[2]) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    Store(to + i * group, even[i]);
    Store(to + i * group + kVec, odd[i]);
  }
}

// As above, and also as rows to row_even and row_odd.
NIBBLE_INLINE void StoreBoth(uint16_t* to, int64_t group, uint16_t* row_even, uint16_t* row_odd,
                             const Vec (&even)[2], const Vec (&odd)[2]) {
#if defined(__AVX512BF16__)
  const __m512i left = RoundPair(even[0], odd[0]), right = RoundPair(even[1], odd[1]);
  _mm512_store_si512(to, InterleaveHalves(left));
  _mm512_store_si512(to + group, InterleaveHalves(right));
  _mm512_store_si512(row_even, _mm512_shuffle_i64x2(left, right, 0x44));
  _mm512_store_si512(row_odd, _mm512_shuffle_i64x2(left, right, 0xee));
#else
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const VecU a = RoundBf16(even[i]), b = RoundBf16(odd[i]);
    Store(reinterpret_cast<uint32_t*>(to + i * group), a | (b << 16));
    StoreFrom(a, row_even + i * kVec);
    StoreFrom(b, row_odd + i * kVec);
  }
#endif
}
NIBBLE_INLINE void StoreBoth(float* to, int64_t group, float* row_even, float* row_odd,
                             const Vec (&even)[2], const Vec (&odd)[2]) {
  StoreRowsOfB(to, group, even, odd);
  StorePair(row_even, even[0], even[1]);
  StorePair(row_odd, odd[0], odd[1]);
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ATTENTION_VEC_H_
