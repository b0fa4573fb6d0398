// Vector functions of the scan's kernels: stores into packed operands, and sums along rows.
// Included by each instruction set's table.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_SCAN_VEC_H_
#define NIBBLE_KERNELS_CPU_LAYERS_SCAN_VEC_H_

#include "kernels/cpu/layers/vec.h"

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/panel_pack.h"
#include "kernels/cpu/layers/rounded_store.h"
#include "kernels/cpu/layers/scan_kernels.h"
#include "kernels/cpu/layers/vec_loop.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

// Prefetches what is ahead, a cache line at a time.
class Asker {
 public:
  NIBBLE_INLINE explicit Asker(const ScanAhead& ahead)
      : at_(static_cast<const char*>(ahead.data)),
        stride_(ahead.stride),
        rows_(ahead.rows),
        row_bytes_(ahead.row_bytes) {}
  NIBBLE_INLINE void NextLine() {
    if (rows_ <= 0) return;
    __builtin_prefetch(at_ + byte_);
    byte_ += kLine;
    if (byte_ < row_bytes_) return;
    byte_ = 0;
    at_ += stride_;
    --rows_;
  }

 private:
  static constexpr int kLine = 64;
  const char* at_;
  int64_t stride_;
  int rows_, row_bytes_, byte_ = 0;
};

// Sixteen adjacent lines of two adjacent depths, the first even, into a packed right operand
// (panel_layout.h), at the group's even depth.
NIBBLE_INLINE void PutPair(float* to, Vec even, Vec odd) {
  Store(to, even);
  Store(to + kPanelLines, odd);
}
NIBBLE_INLINE void PutPair(uint16_t* to, Vec even, Vec odd) {
#if defined(__AVX512BF16__)
  alignas(64) static constexpr uint16_t kInTurn[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                       21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i halves = reinterpret_cast<__m512i>(
      _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(odd), reinterpret_cast<__m512>(even)));
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kInTurn), halves));
#else
  Store(reinterpret_cast<uint32_t*>(to), RoundBf16(even) | (RoundBf16(odd) << 16));
#endif
}

// A block of a packed left operand: lines line … line + 15, depths k … k + 15 of `depth`, both
// multiples of sixteen. Row by row, then Finish; or Zero.
template <class T>
class PackedBlock;

template <>
class PackedBlock<uint16_t> {
 public:
  NIBBLE_INLINE PackedBlock(uint16_t* packed, int64_t line, int64_t k, int64_t depth)
      : to_(packed + PanelOffsetA<uint16_t>(line, k, depth)) {}
  NIBBLE_INLINE void Row(int64_t r, Vec v) { Put(to_ + r * kPanelDepth, v, Whole{}); }
  NIBBLE_INLINE void Finish() {}
  NIBBLE_INLINE void Zero() {
    for (int64_t r = 0; r < kVec; ++r) std::memset(to_ + r * kPanelDepth, 0, kVec * sizeof(*to_));
  }

 private:
  uint16_t* const to_;
};

template <>
class PackedBlock<float> {
 public:
  NIBBLE_INLINE PackedBlock(float* packed, int64_t line, int64_t k, int64_t depth)
      : to_(packed + PanelOffsetA<float>(line, k, depth)) {}
  NIBBLE_INLINE void Row(int64_t r, Vec v) { Store(rows_[r], v); }
  NIBBLE_INLINE void Finish() { TransposeWords(rows_, sizeof(rows_[0]), to_); }
  NIBBLE_INLINE void Zero() { std::memset(to_, 0, sizeof(rows_)); }

 private:
  float* const to_;
  alignas(64) float rows_[kVec][kVec];
};

// Each row's sum.
NIBBLE_INLINE Vec SumRows(const float rows[kVec][kVec]) {
  alignas(64) float turned[kVec][kVec];
  TransposeWords(rows, kVec * sizeof(float), turned);
  Vec sum[kVec];
#pragma GCC unroll 16
  for (int i = 0; i < kVec; ++i) sum[i] = Load(turned[i]);
#pragma GCC unroll 4
  for (int width = kVec / 2; width > 0; width /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < width; ++i) sum[i] = sum[i] + sum[i + width];
  }
  return sum[0];
}

// first, first + 1, …, as floats.
NIBBLE_INLINE Vec LanesFrom(int64_t first) {
  static constexpr float kLane[kVec] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return Load(kLane) + static_cast<float>(first);
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_SCAN_VEC_H_
