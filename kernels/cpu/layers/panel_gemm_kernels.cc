// Panel matmuls on FP32 vectors, compiled once per instruction set. BF16 operands are widened piece
// by piece into buffers that stay in the first-level cache.
#include "kernels/cpu/layers/vec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/panel_pack.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

// A vector that fits a register (an array of wider ones would be kept in memory), and the number of
// rows × vectors that are summed in registers at a time: enough sums to hide the latency of a
// multiply-add, with registers left for a and b.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 8, kGroups = 2;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRows = 4, kGroups = 1;
#else
constexpr int kLanes = 4, kRows = 2, kGroups = 1;
#endif
static_assert(kPanelLines % kRows == 0);
typedef float Wide __attribute__((vector_size(kLanes * 4)));
constexpr int kPerGroup = kPanelLines / kLanes;

NIBBLE_INLINE Wide LoadWide(const float* p) {
  Wide v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
NIBBLE_INLINE void StoreWide(float* p, Wide v) { std::memcpy(p, &v, sizeof(v)); }

// An operand's elements: a(row, k) at data[row * row_step + k * k_step]; b's groups of sixteen
// columns `group` apart, each [k][16].
struct Rows {
  const float* data;
  int64_t row_step, k_step;
};
struct Columns {
  const float* data;
  int64_t group;
};

// c[rows, kG · 16] (+)= a · b; only rows × cols are accessed.
template <int kG>
NIBBLE_INLINE void Block(Rows a, Columns b, int64_t depth, int64_t rows, int64_t cols, float* c,
                         int64_t c_stride, bool accumulate) {
  constexpr int kV = kG * kPerGroup;
  Wide sum[kRows][kV] = {};
  for (int64_t k = 0; k < depth; ++k) {
    Wide wide[kV];
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      wide[v] =
          LoadWide(b.data + v / kPerGroup * b.group + k * kPanelLines + v % kPerGroup * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Wide one = a.data[r * a.row_step + k * a.k_step] - Wide{};
#pragma GCC unroll 4
      for (int v = 0; v < kV; ++v) sum[r][v] = sum[r][v] + one * wide[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if (r >= rows) break;
#pragma GCC unroll 4
    for (int v = 0; v < kV; ++v) {
      float* to = c + r * c_stride + v * kLanes;
      const int64_t here = std::min<int64_t>(cols - v * kLanes, kLanes);
      if (here == kLanes) {
        StoreWide(to, accumulate ? LoadWide(to) + sum[r][v] : sum[r][v]);
      } else if (here > 0) {
        float part[kLanes];
        StoreWide(part, sum[r][v]);
        for (int64_t i = 0; i < here; ++i) to[i] = accumulate ? to[i] + part[i] : part[i];
      }
    }
  }
}

NIBBLE_INLINE void BlockOf(int64_t groups, Rows a, Columns b, int64_t depth, int64_t rows,
                           int64_t cols, float* c, int64_t c_stride, bool accumulate) {
  if (groups == 1) {
    Block<1>(a, b, depth, rows, cols, c, c_stride, accumulate);
  } else {
    Block<kGroups>(a, b, depth, rows, cols, c, c_stride, accumulate);
  }
}

void PackA(const PanelSource<float>& a, int m, int k, float* out) {
  PackFp32(a, !a.transposed, m, k, out);
}
void PackB(const PanelSource<float>& b, int k, int n, float* out) {
  PackFp32(b, b.transposed, n, k, out);
}

void MultiplySlices(const float* a, int a_depth, const float* b, int b_depth, int m, int n, int k,
                    float* c, int64_t c_stride, bool accumulate) {
  const int64_t a_group = PanelGroup(a_depth), b_group = PanelGroup(b_depth);
  for (int64_t j = 0; j < n; j += kGroups * kPanelLines) {
    const int64_t groups = n - j > kPanelLines ? kGroups : 1;
    for (int64_t i = 0; i < m; i += kRows) {
      const float* rows = a + i / kPanelLines * a_group + i % kPanelLines;
      BlockOf(groups, {rows, 1, kPanelLines}, {b + j / kPanelLines * b_group, b_group}, k,
              std::min<int64_t>(kRows, m - i), n - j, c + i * c_stride + j, c_stride, accumulate);
    }
  }
}
void Multiply(const float* a, const float* b, int m, int n, int k, float* c, int64_t c_stride,
              bool accumulate) {
  MultiplySlices(a, k, b, k, m, n, k, c, c_stride, accumulate);
}

void PackA(const PanelSource<uint16_t>& a, int m, int k, uint16_t* out) {
  PackBf16<true>(a, !a.transposed, m, k, out);
}
void PackB(const PanelSource<uint16_t>& b, int k, int n, uint16_t* out) {
  PackBf16<false>(b, b.transposed, n, k, out);
}

// The depth that is widened at a time: with the rows it fits the smallest caches.
constexpr int kPiece = 128, kPieceGroups = 2;

// Tiles [pair][line][2] of one group of columns to [k][16].
NIBBLE_INLINE void WidenColumns(const uint16_t* tiles, int64_t depth, float* out) {
  for (int64_t pair = 0; pair < depth / 2; ++pair) {
    const VecU both = Load(reinterpret_cast<const uint32_t*>(tiles + pair * 32));
    Store(out + 2 * pair * kPanelLines, FromBits(both << 16));
    Store(out + (2 * pair + 1) * kPanelLines, FromBits(both & 0xffff0000u));
  }
}
// kRows lines of tiles [line][32] to [kRows][kPiece].
NIBBLE_INLINE void WidenRows(const uint16_t* tiles, int64_t depth, float* out) {
  for (int64_t k = 0; k < depth; k += kPanelDepth) {
    const uint16_t* tile = tiles + k / kPanelDepth * kPanelTile;
    for (int r = 0; r < kRows; ++r) {
      Store(out + r * kPiece + k, Load(tile + r * kPanelDepth));
      Store(out + r * kPiece + k + kVec, Load(tile + r * kPanelDepth + kVec));
    }
  }
}

void MultiplySlices(const uint16_t* a, int a_depth, const uint16_t* b, int b_depth, int m, int n,
                    int k, float* c, int64_t c_stride, bool accumulate) {
  alignas(64) float columns[kPieceGroups * kPiece * kPanelLines];
  alignas(64) float rows[kRows * kPiece];
  constexpr int64_t kColumnGroup = kPiece * kPanelLines;
  const int64_t a_group = PanelGroup(a_depth), b_group = PanelGroup(b_depth);
  const int64_t padded = PaddedPanelDepth(k);
  for (int64_t j = 0; j < n; j += kPieceGroups * kPanelLines) {
    const int64_t groups = n - j > kPanelLines ? kPieceGroups : 1;
    for (int64_t from = 0; from < padded; from += kPiece) {
      const int64_t depth = std::min<int64_t>(kPiece, padded - from);
      for (int64_t g = 0; g < groups; ++g) {
        WidenColumns(b + (j / kPanelLines + g) * b_group + from * kPanelLines, depth,
                     columns + g * kColumnGroup);
      }
      for (int64_t i = 0; i < m; i += kRows) {
        WidenRows(
            a + i / kPanelLines * a_group + from * kPanelLines + i % kPanelLines * kPanelDepth,
            depth, rows);
        for (int64_t g = 0; g < groups; g += kGroups) {
          const int64_t column = j + g * kPanelLines;
          BlockOf(std::min<int64_t>(kGroups, groups - g), {rows, kPiece, 1},
                  {columns + g * kColumnGroup, kColumnGroup}, depth,
                  std::min<int64_t>(kRows, m - i), n - column, c + i * c_stride + column, c_stride,
                  accumulate || from > 0);
        }
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
template const PanelGemm<float> PanelGemm<float>::NIBBLE_ISA;
template const PanelGemm<uint16_t> PanelGemm<uint16_t>::NIBBLE_ISA;

}  // namespace nibble::cpu
