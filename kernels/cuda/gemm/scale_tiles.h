// The layout of block scales for block-scaled tensor cores (compute capability 10.0 and later): one
// byte per block of 16 or 32 elements along K, in tiles of 128 lines by 4 blocks, 512 bytes each.
// Tiles are in row-major order; lines are padded to 128 and blocks to 4, with zeros.
//
// Plain C++: device code includes it. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_SCALE_TILES_H_
#define NIBBLE_KERNELS_CUDA_GEMM_SCALE_TILES_H_

#include <cstdint>

#include "kernels/formats/lanes.h"

namespace nibble::gpu {

inline constexpr int64_t kScaleTileLines = 128;
inline constexpr int64_t kScaleTileBlocks = 4;
inline constexpr int64_t kScaleTileBytes = kScaleTileLines * kScaleTileBlocks;

NIBBLE_LANES int64_t PaddedScaleLines(int64_t lines) {
  return (lines + kScaleTileLines - 1) / kScaleTileLines * kScaleTileLines;
}
NIBBLE_LANES int64_t PaddedScaleBlocks(int64_t blocks) {
  return (blocks + kScaleTileBlocks - 1) / kScaleTileBlocks * kScaleTileBlocks;
}
// Bytes of the scales of [lines, blocks].
NIBBLE_LANES int64_t ScaleTilesBytes(int64_t lines, int64_t blocks) {
  return PaddedScaleLines(lines) * PaddedScaleBlocks(blocks);
}

// The byte of block `block` of line `line`, of `blocks` per line. Within a tile, the four blocks of
// a line are neighbours; lines 0, 32, 64 and 96 follow each other, then lines 1, 33, 65 and 97.
NIBBLE_LANES int64_t ScaleTileOffset(int64_t line, int64_t block, int64_t blocks) {
  const int64_t tiles_per_line = PaddedScaleBlocks(blocks) / kScaleTileBlocks;
  const int64_t tile = line / kScaleTileLines * tiles_per_line + block / kScaleTileBlocks;
  const int64_t in_tile = line % kScaleTileLines;
  return tile * kScaleTileBytes + in_tile % 32 * 16 + in_tile / 32 * 4 + block % kScaleTileBlocks;
}

// The inverse: the place in the tiles of a byte.
struct ScalePlace {
  int64_t line;
  int64_t block;
};
NIBBLE_LANES ScalePlace ScalePlaceOf(int64_t offset, int64_t blocks) {
  const int64_t tiles_per_line = PaddedScaleBlocks(blocks) / kScaleTileBlocks;
  const int64_t tile = offset / kScaleTileBytes;
  const int64_t in_tile = offset % kScaleTileBytes;
  return {tile / tiles_per_line * kScaleTileLines + in_tile % 16 / 4 * 32 + in_tile / 16,
          tile % tiles_per_line * kScaleTileBlocks + in_tile % 4};
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_GEMM_SCALE_TILES_H_
