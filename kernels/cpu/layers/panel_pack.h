// Packing for panel matmuls (panel_layout.h), included by each instruction set's table after vec.h.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_PANEL_PACK_H_
#define NIBBLE_KERNELS_CPU_LAYERS_PANEL_PACK_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/layers/panel_layout.h"
#include "kernels/cpu/layers/vec.h"

namespace nibble::cpu {
inline namespace NIBBLE_ISA {

// A 16 × 16 matrix of 32-bit words, its rows `stride` bytes apart, transposed into out[16][16].
NIBBLE_INLINE void TransposeWords(const void* in, int64_t stride, void* out) {
  const char* from = static_cast<const char*>(in);
  char* to = static_cast<char*>(out);
#ifdef __AVX512F__
  VecU row[16], mixed[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) std::memcpy(&row[i], from + i * stride, sizeof(VecU));
    // Words, then double words within each quarter, then the quarters themselves.
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    mixed[i] = __builtin_shufflevector(row[i], row[i + 1], 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25,
                                       12, 28, 13, 29);
    mixed[i + 1] = __builtin_shufflevector(row[i], row[i + 1], 2, 18, 3, 19, 6, 22, 7, 23, 10, 26,
                                           11, 27, 14, 30, 15, 31);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      const VecU a = mixed[i + half], b = mixed[i + 2 + half];
      row[i + 2 * half] =
          __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
      row[i + 2 * half + 1] =
          __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    }
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const VecU low_a = __builtin_shufflevector(row[j], row[4 + j], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17,
                                               18, 19, 24, 25, 26, 27);
    const VecU high_a = __builtin_shufflevector(row[j], row[4 + j], 4, 5, 6, 7, 12, 13, 14, 15, 20,
                                                21, 22, 23, 28, 29, 30, 31);
    const VecU low_b = __builtin_shufflevector(row[8 + j], row[12 + j], 0, 1, 2, 3, 8, 9, 10, 11,
                                               16, 17, 18, 19, 24, 25, 26, 27);
    const VecU high_b = __builtin_shufflevector(row[8 + j], row[12 + j], 4, 5, 6, 7, 12, 13, 14, 15,
                                                20, 21, 22, 23, 28, 29, 30, 31);
    mixed[j] = __builtin_shufflevector(low_a, low_b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24,
                                       25, 26, 27);
    mixed[8 + j] = __builtin_shufflevector(low_a, low_b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23,
                                           28, 29, 30, 31);
    mixed[4 + j] = __builtin_shufflevector(high_a, high_b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19,
                                           24, 25, 26, 27);
    mixed[12 + j] = __builtin_shufflevector(high_a, high_b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22,
                                            23, 28, 29, 30, 31);
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) std::memcpy(to + i * sizeof(VecU), &mixed[i], sizeof(VecU));
#else
  typedef uint32_t Four __attribute__((vector_size(16)));
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 16; j += 4) {
      Four row[4], mixed[4];
      for (int r = 0; r < 4; ++r) std::memcpy(&row[r], from + (i + r) * stride + j * 4, 16);
      mixed[0] = __builtin_shufflevector(row[0], row[1], 0, 4, 1, 5);
      mixed[1] = __builtin_shufflevector(row[0], row[1], 2, 6, 3, 7);
      mixed[2] = __builtin_shufflevector(row[2], row[3], 0, 4, 1, 5);
      mixed[3] = __builtin_shufflevector(row[2], row[3], 2, 6, 3, 7);
      row[0] = __builtin_shufflevector(mixed[0], mixed[2], 0, 1, 4, 5);
      row[1] = __builtin_shufflevector(mixed[0], mixed[2], 2, 3, 6, 7);
      row[2] = __builtin_shufflevector(mixed[1], mixed[3], 0, 1, 4, 5);
      row[3] = __builtin_shufflevector(mixed[1], mixed[3], 2, 3, 6, 7);
      for (int c = 0; c < 4; ++c) std::memcpy(to + (j + c) * 64 + i * 4, &row[c], 16);
    }
  }
#endif
}

// A block of the source, lines [line, line + 16) × depth [k, k + count of T in 64 bytes), as 16
// rows of 64 bytes, zeros past the end: in place if it is complete.
struct WordRows {
  const void* data;
  int64_t stride;  // bytes
};
template <class T>
NIBBLE_INLINE WordRows RowsOfLines(const PanelSource<T>& source, int64_t line, int64_t lines,
                                   int64_t k, int64_t depth, T* scratch) {
  constexpr int64_t kWide = 64 / sizeof(T);
  const T* from = source.data + line * source.stride + k;
  if (lines - line >= 16 && depth - k >= kWide) {
    return {from, source.stride * static_cast<int64_t>(sizeof(T))};
  }
  const int64_t rows = std::min<int64_t>(16, lines - line);
  const int64_t wide = std::min<int64_t>(kWide, depth - k);
  std::memset(scratch, 0, 16 * 64);
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(scratch + i * kWide, from + i * source.stride, wide * sizeof(T));
  }
  return {scratch, 64};
}

// The tile of `b` whose depth rows are contiguous in memory: pairs of rows, interleaved.
NIBBLE_INLINE void InterleavePairs(const PanelSource<uint16_t>& source, int64_t line, int64_t lines,
                                   int64_t k, int64_t depth, uint16_t* out) {
  const int64_t wide = std::min<int64_t>(16, lines - line);
  uint32_t* to = reinterpret_cast<uint32_t*>(out);
  const uint16_t* from = source.data + k * source.stride + line;
  if (wide == 16 && depth - k >= kPanelDepth) {
#pragma GCC unroll 4
    for (int pair = 0; pair < 16; ++pair, from += 2 * source.stride) {
      VecU even, odd;
      LoadTo(even, from);
      LoadTo(odd, from + source.stride);
      Store(to + pair * 16, even | (odd << 16));
    }
    return;
  }
  const auto load = [&](int64_t row) {
    uint16_t part[16] = {};
    if (row < depth) std::memcpy(part, source.data + row * source.stride + line, wide * 2);
    VecU v;
    LoadTo(v, part);
    return v;
  };
  for (int pair = 0; pair < 16; ++pair) {
    Store(to + pair * 16, load(k + 2 * pair) | (load(k + 2 * pair + 1) << 16));
  }
}

// `by_line`: element (line, k) is data[line * stride + k], else data[k * stride + line].
template <bool kIsA>
NIBBLE_INLINE void PackBf16(const PanelSource<uint16_t>& source, bool by_line, int64_t lines,
                            int64_t depth, uint16_t* out) {
  alignas(64) uint16_t scratch[kPanelTile];
  const int64_t group = PanelGroup(depth);
  if (by_line) {
    for (int64_t line = 0; line < lines; line += kPanelLines) {
      for (int64_t k = 0; k < depth; k += kPanelDepth, out += kPanelTile) {
        const WordRows rows = RowsOfLines(source, line, lines, k, depth, scratch);
        if constexpr (kIsA) {
          for (int i = 0; i < 16; ++i) {
            std::memcpy(out + i * kPanelDepth,
                        static_cast<const char*>(rows.data) + i * rows.stride, 64);
          }
        } else {
          TransposeWords(rows.data, rows.stride, out);
        }
      }
    }
    return;
  }
  for (int64_t k = 0; k < depth; k += kPanelDepth, out += kPanelTile) {
    for (int64_t line = 0; line < lines; line += kPanelLines) {
      uint16_t* tile = out + line / kPanelLines * group;
      if constexpr (kIsA) {
        InterleavePairs(source, line, lines, k, depth, scratch);
        TransposeWords(scratch, 64, tile);
      } else {
        InterleavePairs(source, line, lines, k, depth, tile);
      }
    }
  }
}

NIBBLE_INLINE void PackFp32(const PanelSource<float>& source, bool by_line, int64_t lines,
                            int64_t depth, float* out) {
  alignas(64) float scratch[16 * 16];
  const int64_t padded = PaddedPanelDepth(depth);
  for (int64_t line = 0; line < lines; line += kPanelLines) {
    for (int64_t k = 0; k < padded; k += 16, out += 16 * kPanelLines) {
      if (k >= depth) {
        std::memset(out, 0, 16 * kPanelLines * sizeof(float));
      } else if (by_line) {
        const WordRows rows = RowsOfLines(source, line, lines, k, depth, scratch);
        TransposeWords(rows.data, rows.stride, out);
      } else {
        const int64_t wide = std::min<int64_t>(16, lines - line);
        for (int64_t i = 0; i < 16; ++i) {
          Vec row = {};
          if (k + i < depth) {
            const float* from = source.data + (k + i) * source.stride + line;
            row = wide == 16 ? Load(from) : LoadPart(from, wide);
          }
          Store(out + i * kPanelLines, row);
        }
      }
    }
  }
}

}  // namespace NIBBLE_ISA
}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_PANEL_PACK_H_
