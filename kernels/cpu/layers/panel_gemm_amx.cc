// BF16 panel matmuls on AMX: 32 × 32 of c in four tile registers, two tiles of a and two of b.
#include "kernels/cpu/layers/vec.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/layers/panel_gemm.h"
#include "kernels/cpu/layers/panel_gemm_amx.h"
#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/panel_pack.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {
namespace {

// Registers 0-3: c, row by row; 4, 5: a; 6, 7: b.
constexpr int kTileRowBytes = 64;

// In assembly: the compiler's intrinsics do not accept a template parameter as register, and the
// loading ones do not declare that they read memory.
template <int kReg>
NIBBLE_INLINE void LoadTile(const void* from, int64_t stride_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(stride_bytes), "i"(kReg)
               : "memory");
}
// As LoadTile, for data that is read once: it does not displace the first-level cache.
template <int kReg>
NIBBLE_INLINE void StreamTile(const void* from, int64_t stride_bytes) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(stride_bytes), "i"(kReg)
               : "memory");
}
template <int kReg>
NIBBLE_INLINE void StoreTile(void* to, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
               :
               : "r"(to), "r"(stride_bytes), "i"(kReg)
               : "memory");
}
template <int kReg>
NIBBLE_INLINE void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kReg));
}
template <int kC, int kA, int kB>
NIBBLE_INLINE void MultiplyTiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

// An incomplete 16 × 16 tile of c goes through this buffer.
struct EdgeTile {
  alignas(64) float data[16 * 16];
};

template <int kReg, bool kOnce>
NIBBLE_INLINE void LoadB(const uint16_t* tile) {
  if constexpr (kOnce) {
    StreamTile<kReg>(tile, kTileRowBytes);
  } else {
    LoadTile<kReg>(tile, kTileRowBytes);
  }
}

struct TileOfC {
  float* data;
  int64_t stride;      // elements
  int64_t rows, cols;  // existing ones; 16 or more: complete
  bool whole() const { return rows >= 16 && cols >= 16; }
};

template <int kReg>
NIBBLE_INLINE void LoadC(const TileOfC& c, bool accumulate, EdgeTile& edge) {
  if (!accumulate) {
    ZeroTile<kReg>();
  } else if (c.whole()) {
    LoadTile<kReg>(c.data, c.stride * 4);
  } else {
    const int64_t rows = std::min<int64_t>(16, c.rows), cols = std::min<int64_t>(16, c.cols);
    for (int64_t i = 0; i < rows; ++i) {
      const __mmask16 mask = cols == 16 ? 0xffff : (1u << cols) - 1;
      _mm512_store_ps(edge.data + i * 16, _mm512_maskz_loadu_ps(mask, c.data + i * c.stride));
    }
    for (int64_t i = rows; i < 16; ++i) _mm512_store_ps(edge.data + i * 16, _mm512_setzero_ps());
    LoadTile<kReg>(edge.data, kTileRowBytes);
  }
}

template <int kReg>
NIBBLE_INLINE void StoreC(const TileOfC& c, EdgeTile& edge) {
  if (c.whole()) {
    StoreTile<kReg>(c.data, c.stride * 4);
    return;
  }
  StoreTile<kReg>(edge.data, kTileRowBytes);
  const int64_t rows = std::min<int64_t>(16, c.rows), cols = std::min<int64_t>(16, c.cols);
  const __mmask16 mask = cols == 16 ? 0xffff : (1u << cols) - 1;
  for (int64_t i = 0; i < rows; ++i) {
    _mm512_mask_storeu_ps(c.data + i * c.stride, mask, _mm512_load_ps(edge.data + i * 16));
  }
}

// 16·kM rows × 16·kN columns. `kOnce`: b is not read again soon.
template <int kM, int kN, bool kOnce>
NIBBLE_INLINE void Block(const uint16_t* a, int64_t a_group, const uint16_t* b, int64_t b_group,
                         int64_t depth, const TileOfC& c, bool accumulate, EdgeTile& edge) {
  const TileOfC right = {c.data + 16, c.stride, c.rows, c.cols - 16};
  const TileOfC below = {c.data + 16 * c.stride, c.stride, c.rows - 16, c.cols};
  const TileOfC last = {below.data + 16, c.stride, below.rows, right.cols};
  LoadC<0>(c, accumulate, edge);
  if constexpr (kN == 2) LoadC<1>(right, accumulate, edge);
  if constexpr (kM == 2) LoadC<2>(below, accumulate, edge);
  if constexpr (kM == 2 && kN == 2) LoadC<3>(last, accumulate, edge);
  for (int64_t tile = 0; tile < PanelGroup(depth); tile += kPanelTile) {
    LoadTile<4>(a + tile, kTileRowBytes);
    LoadB<6, kOnce>(b + tile);
    MultiplyTiles<0, 4, 6>();
    if constexpr (kN == 2) {
      LoadB<7, kOnce>(b + b_group + tile);
      MultiplyTiles<1, 4, 7>();
    }
    if constexpr (kM == 2) {
      LoadTile<5>(a + a_group + tile, kTileRowBytes);
      MultiplyTiles<2, 5, 6>();
      if constexpr (kN == 2) MultiplyTiles<3, 5, 7>();
    }
  }
  StoreC<0>(c, edge);
  if constexpr (kN == 2) StoreC<1>(right, edge);
  if constexpr (kM == 2) StoreC<2>(below, edge);
  if constexpr (kM == 2 && kN == 2) StoreC<3>(last, edge);
}

void PackA(const PanelSource<uint16_t>& a, int m, int k, uint16_t* out) {
  PackBf16<true>(a, !a.transposed, m, k, out);
}
void PackB(const PanelSource<uint16_t>& b, int k, int n, uint16_t* out) {
  PackBf16<false>(b, b.transposed, n, k, out);
}

// Columns are the outer loop, so that two groups of b stay in the first-level cache while a streams
// past.
template <bool kOnce>
NIBBLE_INLINE void Blocks(const uint16_t* a, int64_t a_group, const uint16_t* b, int64_t b_group,
                          int m, int n, int k, float* c, int64_t c_stride, bool accumulate) {
  EdgeTile edge;
  for (int64_t j = 0; j < n; j += 2 * kPanelLines) {
    const uint16_t* columns = b + j / kPanelLines * b_group;
    for (int64_t i = 0; i < m; i += 2 * kPanelLines) {
      const uint16_t* rows = a + i / kPanelLines * a_group;
      const TileOfC to = {c + i * c_stride + j, c_stride, m - i, n - j};
      const bool tall = m - i > kPanelLines, wide = n - j > kPanelLines;
      if (tall && wide) {
        Block<2, 2, kOnce>(rows, a_group, columns, b_group, k, to, accumulate, edge);
      } else if (tall) {
        Block<2, 1, kOnce>(rows, a_group, columns, b_group, k, to, accumulate, edge);
      } else if (wide) {
        Block<1, 2, kOnce>(rows, a_group, columns, b_group, k, to, accumulate, edge);
      } else {
        Block<1, 1, kOnce>(rows, a_group, columns, b_group, k, to, accumulate, edge);
      }
    }
  }
}

void MultiplySlices(const uint16_t* a, int a_depth, const uint16_t* b, int b_depth, int m, int n,
                    int k, float* c, int64_t c_stride, bool accumulate) {
  const int64_t a_group = PanelGroup(a_depth), b_group = PanelGroup(b_depth);
  if (m <= 2 * kPanelLines) {
    Blocks<true>(a, a_group, b, b_group, m, n, k, c, c_stride, accumulate);
  } else {
    Blocks<false>(a, a_group, b, b_group, m, n, k, c, c_stride, accumulate);
  }
}
void Multiply(const uint16_t* a, const uint16_t* b, int m, int n, int k, float* c, int64_t c_stride,
              bool accumulate) {
  MultiplySlices(a, k, b, k, m, n, k, c, c_stride, accumulate);
}

// The operand of LDTILECFG.
struct TileConfig {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace

void LoadTiles() {
  alignas(64) TileConfig config = {.palette = 1};
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = kTileRowBytes;
    config.rows[i] = 16;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

void ReleaseTiles() { asm volatile("tilerelease"); }

}  // namespace NIBBLE_ISA

template <class T>
const PanelGemm<T> PanelGemm<T>::NIBBLE_ISA = {PackA, PackB, Multiply, MultiplySlices};
template const PanelGemm<uint16_t> PanelGemm<uint16_t>::NIBBLE_ISA;

}  // namespace nibble::cpu
