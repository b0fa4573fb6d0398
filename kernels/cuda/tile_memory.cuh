// The tile of the source that a thread block of the tile kernels has in shared memory: its shape,
// its position, its loading, and the amax of its 16x16 blocks.
//
// Ownership: a thread block's shared memory. Thread-safety: as device code; callers place the
// barriers.
#ifndef NIBBLE_KERNELS_CUDA_TILE_MEMORY_CUH_
#define NIBBLE_KERNELS_CUDA_TILE_MEMORY_CUH_

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/quantize_args.h"

namespace nibble::gpu {

inline constexpr uint32_t kTileCols = 128;
inline constexpr uint32_t kTileThreads = 128;
// Thread blocks per multiprocessor: as many as fit its shared memory; registers must allow it.
inline constexpr uint32_t kTileBlocks = 5;
// Tiles are processed in bands of this many tile rows, so that neighbours in both directions are in
// flight together and the second-level cache merges their short runs.
inline constexpr uint32_t kTileBand = 8;

template <bool kF32>
struct TileShape {
  static constexpr uint32_t kRows = kF32 ? 64 : 128;
  static constexpr uint32_t kGroups = kRows / 16;  // blocks along a column
  static constexpr uint32_t kElementBytes = kF32 ? 4 : 2;
  static constexpr uint32_t kRowBytes = kTileCols * kElementBytes;
  // Codes of one column of the tile; 16 bytes away from a power of two, to avoid bank conflicts.
  static constexpr uint32_t kStageStride = kRows / 2 + 16;
};

template <bool kF32>
struct __align__(16) TileMemory {
  using Shape = TileShape<kF32>;
  unsigned char x[Shape::kRows * Shape::kRowBytes];
  unsigned char codes[kTileCols * Shape::kStageStride];
  unsigned char scales[kTileCols * Shape::kGroups];
  float row_factor[128];
  float column_factor[128];
  uint32_t square_amax[Shape::kGroups][kTileCols / 16];
};

// Position of a thread block: its tile's origin and the part of the tile inside the source.
// TileTakes keeps all of it, and every stride, below 2^31, so that addresses are 32-bit products.
struct TilePlace {
  uint32_t row;
  uint32_t col;
  uint32_t
      rows;  // multiples of 16 if a column copy is made; 0 for a thread block beyond the source
  uint32_t cols;  // multiple of 16
};

template <bool kF32>
__device__ __forceinline__ TilePlace PlaceOf(const Source& x) {
  constexpr uint32_t kRows = TileShape<kF32>::kRows;
  const uint32_t row = (blockIdx.z * kTileBand + blockIdx.x) * kRows;
  const uint32_t col = blockIdx.y * kTileCols;
  const uint32_t rows = static_cast<uint32_t>(x.rows);
  const uint32_t cols = static_cast<uint32_t>(x.cols) - col;
  return {row, col, row >= rows ? 0 : MinBits<uint32_t>(rows - row, kRows),
          MinBits<uint32_t>(cols, kTileCols)};
}

// Address of byte `along` of line `line`.
template <class T>
__device__ __forceinline__ uint64_t AddressOf(T* base, uint32_t line, int64_t stride_bytes,
                                              uint32_t along_bytes) {
  return MultiplyAddWide(line, static_cast<uint32_t>(stride_bytes),
                         reinterpret_cast<uint64_t>(base) + along_bytes);
}

// Starts the copy of the tile, 16 bytes at a time; a thread goes down its 16-byte column.
template <bool kF32>
__device__ __forceinline__ void StartLoad(const Source& x, const TilePlace& place,
                                          TileMemory<kF32>& memory) {
  using Shape = TileShape<kF32>;
  constexpr uint32_t kPieces = Shape::kRowBytes / 16;
  constexpr uint32_t kStep = kTileThreads / kPieces;
  const uint32_t piece = threadIdx.x % kPieces;
  const uint32_t first = threadIdx.x / kPieces;
  const uint32_t row_bytes = static_cast<uint32_t>(x.stride * Shape::kElementBytes);
  uint64_t from = AddressOf(x.data, place.row + first, row_bytes,
                            place.col * Shape::kElementBytes + 16 * piece);
  const uint32_t to = Kept(SharedAddress(memory.x) + 16u * threadIdx.x);
  const uint32_t rows = piece * 16 < place.cols * Shape::kElementBytes ? place.rows : 0;
#pragma unroll
  for (uint32_t i = 0; i < Shape::kRows / kStep; ++i) {
    if (first + i * kStep < rows) {
      CopyToShared16(to + i * kTileThreads * 16, from);
    }
    from += uint64_t{kStep} * row_bytes;
  }
}

// Element (row, col) of the tile.
template <bool kF32>
__device__ __forceinline__ float TileElement(const TileMemory<kF32>& memory, uint32_t row,
                                             uint32_t col) {
  if constexpr (kF32) {
    return reinterpret_cast<const float*>(memory.x)[row * kTileCols + col];
  } else {
    return DecodeBf16(reinterpret_cast<const uint16_t*>(memory.x)[row * kTileCols + col]);
  }
}

// Amax of each 16×16 block, skipping NaN; four neighbouring threads share one. Returns whether one
// of a thread's values was not finite.
template <bool kF32>
__device__ __forceinline__ bool SquareAmax(const TilePlace& place, TileMemory<kF32>& memory) {
  constexpr uint32_t kUnits = TileShape<kF32>::kGroups * (kTileCols / 16) * 4;
  ExactAmax all;
  for (uint32_t unit = threadIdx.x; unit < kUnits; unit += kTileThreads) {
    const uint32_t quarter = unit % 4;
    const uint32_t block = unit / 4;
    const uint32_t row = block / (kTileCols / 16);
    const uint32_t col = block % (kTileCols / 16);
    ExactAmax amax;
    if (16 * row < place.rows && 16 * col < place.cols) {
#pragma unroll 1
      for (uint32_t i = 4 * quarter; i < 4 * quarter + 4; ++i) {
#pragma unroll 8
        for (uint32_t j = 0; j < 16; ++j) {
          amax.Add(TileElement<kF32>(memory, 16 * row + i, 16 * col + j));
        }
      }
    }
    all.non_finite += amax.non_finite;
    uint32_t bits = amax.bits;
    bits = MaxBits<uint32_t>(bits, __shfl_xor_sync(0xffffffffu, bits, 1));
    bits = MaxBits<uint32_t>(bits, __shfl_xor_sync(0xffffffffu, bits, 2));
    if (quarter == 0) memory.square_amax[row][col] = bits;
  }
  return all.non_finite != 0;
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_TILE_MEMORY_CUH_
