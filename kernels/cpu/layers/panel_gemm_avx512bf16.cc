// BF16 panel matmuls on AVX512-BF16: pairs of depth, FP32 sums.
#include "kernels/cpu/layers/vec.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/panel_pack.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

constexpr int kRows = 8;

NIBBLE_INLINE __m512bh Pairs(const uint16_t* p) {
  return __builtin_bit_cast(__m512bh, _mm512_loadu_si512(p));
}
NIBBLE_INLINE __m512bh Repeat(const uint16_t* pair) {
  int32_t both;
  std::memcpy(&both, pair, sizeof(both));
  return __builtin_bit_cast(__m512bh, _mm512_set1_epi32(both));
}

// c[rows, kG · 16] (+)= a · b; only rows × cols are accessed.
template <int kG>
NIBBLE_INLINE void Block(const uint16_t* a, const uint16_t* b, int64_t b_group, int64_t depth,
                         int64_t rows, int64_t cols, float* c, int64_t c_stride, bool accumulate) {
  __m512 sum[kRows][kG];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int g = 0; g < kG; ++g) sum[r][g] = _mm512_setzero_ps();
  }
  for (int64_t tile = 0; tile < PanelGroup(depth); tile += kPanelTile) {
    for (int pair = 0; pair < kPanelDepth / 2; ++pair) {
      __m512bh wide[kG];
#pragma GCC unroll 2
      for (int g = 0; g < kG; ++g) wide[g] = Pairs(b + g * b_group + tile + pair * 32);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const __m512bh one = Repeat(a + tile + r * kPanelDepth + 2 * pair);
#pragma GCC unroll 2
        for (int g = 0; g < kG; ++g) sum[r][g] = _mm512_dpbf16_ps(sum[r][g], one, wide[g]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 2
    for (int g = 0; g < kG; ++g) {
      float* to = c + r * c_stride + g * kVec;
      const int64_t here = cols - g * kVec;
      if (here <= 0) break;
      const __mmask16 mask = here >= kVec ? 0xffff : (1u << here) - 1;
      __m512 value = sum[r][g];
      if (accumulate) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, to));
      _mm512_mask_storeu_ps(to, mask, value);
    }
  }
}

void PackA(const PanelSource<uint16_t>& a, int m, int k, uint16_t* out) {
  PackBf16<true>(a, !a.transposed, m, k, out);
}
void PackB(const PanelSource<uint16_t>& b, int k, int n, uint16_t* out) {
  PackBf16<false>(b, b.transposed, n, k, out);
}

void MultiplySlices(const uint16_t* a, int a_depth, const uint16_t* b, int b_depth, int m, int n,
                    int k, float* c, int64_t c_stride, bool accumulate) {
  const int64_t a_group = PanelGroup(a_depth), b_group = PanelGroup(b_depth);
  for (int64_t j = 0; j < n; j += 2 * kPanelLines) {
    const uint16_t* columns = b + j / kPanelLines * b_group;
    for (int64_t i = 0; i < m; i += kRows) {
      const uint16_t* rows = a + i / kPanelLines * a_group + i % kPanelLines * kPanelDepth;
      const int64_t count = std::min<int64_t>(kRows, m - i);
      float* to = c + i * c_stride + j;
      if (n - j > kPanelLines) {
        Block<2>(rows, columns, b_group, k, count, n - j, to, c_stride, accumulate);
      } else {
        Block<1>(rows, columns, b_group, k, count, n - j, to, c_stride, accumulate);
      }
    }
  }
}
void Multiply(const uint16_t* a, const uint16_t* b, int m, int n, int k, float* c, int64_t c_stride,
              bool accumulate) {
  MultiplySlices(a, k, b, k, m, n, k, c, c_stride, accumulate);
}

}  // namespace
}  // namespace NIBBLE_ISA

template <class T>
const PanelGemm<T> PanelGemm<T>::NIBBLE_ISA = {PackA, PackB, Multiply, MultiplySlices};
template const PanelGemm<uint16_t> PanelGemm<uint16_t>::NIBBLE_ISA;

}  // namespace nibble::cpu
