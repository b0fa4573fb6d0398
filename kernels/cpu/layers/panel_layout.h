// The layout of packed operands, for kernels that write one directly.
//
// Lines are a's rows or b's columns, in groups of sixteen; groups follow each other and contain the
// whole depth, padded to a multiple of kPanelDepth.
// - BF16, in tiles of 16 lines × 32 of depth: a tile of `a` is [16 lines][32 depth], a tile of `b`
//   is [16 pairs][16 lines][2 depth], which is what AMX and AVX512-BF16 read.
// - FP32: [depth][16 lines], a and b alike.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_PANEL_LAYOUT_H_
#define NIBBLE_KERNELS_CPU_LAYERS_PANEL_LAYOUT_H_

#include <cstdint>

#include "kernels/cpu/layers/panel_gemm.h"

namespace nibble::cpu {

inline constexpr int kPanelTile = kPanelLines * kPanelDepth;

constexpr int64_t PaddedPanelDepth(int64_t depth) {
  return (depth + kPanelDepth - 1) / kPanelDepth * kPanelDepth;
}

// Elements from one group of sixteen lines to the next.
constexpr int64_t PanelGroup(int64_t depth) { return kPanelLines * PaddedPanelDepth(depth); }

// The offset of element (line, k) of a packed operand of depth `depth`.
template <class T>
constexpr int64_t PanelOffsetA(int64_t line, int64_t k, int64_t depth) {
  const int64_t group = line / kPanelLines * PanelGroup(depth);
  const int64_t in_group = line % kPanelLines;
  if constexpr (sizeof(T) == 2) {
    return group + k / kPanelDepth * kPanelTile + in_group * kPanelDepth + k % kPanelDepth;
  } else {
    return group + k * kPanelLines + in_group;
  }
}
template <class T>
constexpr int64_t PanelOffsetB(int64_t line, int64_t k, int64_t depth) {
  const int64_t group = line / kPanelLines * PanelGroup(depth);
  const int64_t in_group = line % kPanelLines;
  if constexpr (sizeof(T) == 2) {
    return group + k / 2 * (2 * kPanelLines) + in_group * 2 + k % 2;
  } else {
    return group + k * kPanelLines + in_group;
  }
}

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_PANEL_LAYOUT_H_
