// The tile of the source that a thread block of the tile kernels has in shared memory: its shape,
// its position, its loading, the amax of its 16x16 blocks, and the staging of column results.
//
// Bank conflicts. The tile's rows are stored in 16-byte pieces, of which the low address bits are
// exchanged by the piece's place in the row (SwizzledPiece): 8 threads that read neighbouring
// blocks of a row, and a warp that reads neighbouring columns, both touch every bank once. Column
// codes are staged in the tile itself, in place of the 16 rows by 64 columns that a warp has just
// read and that no other warp reads in the column phase: 16 bytes per pair of columns, at an
// exchanged place (StagedCodes), so that writing them and reading them column by column are free of
// conflicts too. A tile that the exact formulas redo is loaded again.
//
// Ownership: a thread block's shared memory. Thread-safety: as device code; callers place the
// barriers.
#ifndef NIBBLE_KERNELS_CUDA_TILE_MEMORY_CUH_
#define NIBBLE_KERNELS_CUDA_TILE_MEMORY_CUH_

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/source_load.cuh"

namespace nibble::gpu {

inline constexpr uint32_t kTileCols = 128;
inline constexpr uint32_t kTileThreads = 128;
// Tiles are processed in bands of this many tile rows, so that neighbours in both directions are in
// flight together and the second-level cache merges their short runs.
inline constexpr uint32_t kTileBand = 8;
// The phases' variant without tests takes tiles of a multiple of this many rows.
inline constexpr uint32_t kPlainRows = 32;

template <bool kF32>
struct TileShape {
  static constexpr uint32_t kRows = kF32 ? 64 : 128;
  static constexpr uint32_t kGroups = kRows / 16;  // blocks along a column
  static constexpr uint32_t kElementBytes = kF32 ? 4 : 2;
  static constexpr uint32_t kRowBytes = kTileCols * kElementBytes;
  // Thread blocks per multiprocessor: as many as fit its shared memory and registers; 16 rows of
  // two FP32 columns take 32 registers.
  static constexpr uint32_t kBlocks = kF32 ? 5 : 6;
  // 16-byte pieces of a column's codes.
  static constexpr uint32_t kCodePieces = kRows / 32;
  // Scales of a pair of columns, block by block; an odd number of words, to avoid bank conflicts.
  static constexpr uint32_t kScaleStride = 2 * kGroups + 4;
};

template <bool kF32>
struct __align__(16) TileMemory {
  using Shape = TileShape<kF32>;
  unsigned char x[Shape::kRows * Shape::kRowBytes];
  unsigned char scales[kTileCols / 2 * Shape::kScaleStride];
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

// Bands are taken from the last to the first: the amax pass, or whoever wrote the source, went
// forward, so that the second-level cache has its end.
template <bool kF32>
__device__ __forceinline__ TilePlace PlaceOf(const Source& x) {
  constexpr uint32_t kRows = TileShape<kF32>::kRows;
  const uint32_t row = ((gridDim.z - 1 - blockIdx.z) * kTileBand + blockIdx.x) * kRows;
  const uint32_t col = blockIdx.y * kTileCols;
  const uint32_t rows = static_cast<uint32_t>(x.rows);
  const uint32_t cols = static_cast<uint32_t>(x.cols) - col;
  return {row, col, row >= rows ? 0 : MinBits<uint32_t>(rows - row, kRows),
          MinBits<uint32_t>(cols, kTileCols)};
}

// Launches a kernel whose thread blocks have the places that PlaceOf gives, with this much shared
// memory each.
template <bool kF32, class Args>
cudaError_t LaunchOnTiles(void (*kernel)(Args), size_t shared_bytes, const Args& args,
                          cudaStream_t stream) {
  const auto tiles = [](int64_t size, int64_t by) {
    return static_cast<unsigned>((size + by - 1) / by);
  };
  const dim3 grid(kTileBand, tiles(args.x.cols, kTileCols),
                  tiles(args.x.rows, int64_t{TileShape<kF32>::kRows} * kTileBand));
  return Launch(kernel, grid, kTileThreads, shared_bytes, stream, args);
}

// Address of byte `along` of line `line`.
template <class T>
__device__ __forceinline__ uint64_t AddressOf(T* base, uint32_t line, int64_t stride_bytes,
                                              uint32_t along_bytes) {
  return MultiplyAddWide(line, static_cast<uint32_t>(stride_bytes),
                         reinterpret_cast<uint64_t>(base) + along_bytes);
}

// Where 16-byte piece `piece` of a row is stored in the row.
template <bool kF32>
__device__ __forceinline__ uint32_t SwizzledPiece(uint32_t piece) {
  return piece ^ ((piece / 8) & (kF32 ? 3u : 1u));
}
// Where byte `byte` of a row is stored in the row.
template <bool kF32>
__device__ __forceinline__ uint32_t SwizzledByte(uint32_t byte) {
  return 16 * SwizzledPiece<kF32>(byte / 16) + byte % 16;
}

// Where the tile has the staged codes of block `group` of column `col`: 8 bytes, beside those of
// the other column of its pair.
template <bool kF32>
__device__ __forceinline__ uint32_t StagedCodes(uint32_t group, uint32_t col) {
  using Shape = TileShape<kF32>;
  const uint32_t pair = col % 64 / 2;  // in the half of the tile that a warp takes
  const uint32_t piece = (pair % 8) ^ (group / 2 * (8 / Shape::kCodePieces));
  return (16 * group + pair / 8) * Shape::kRowBytes + col / 64 * (Shape::kRowBytes / 2) +
         16 * piece + col % 2 * 8;
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
  const uint32_t to =
      Kept(SharedAddress(memory.x) + first * Shape::kRowBytes + 16 * SwizzledPiece<kF32>(piece));
  if (place.rows == Shape::kRows && place.cols == kTileCols) {
#pragma unroll
    for (uint32_t i = 0; i < Shape::kRows / kStep; ++i) {
      CopyToShared16(to + i * kStep * Shape::kRowBytes, from);
      from += uint64_t{kStep} * row_bytes;
    }
    return;
  }
  const uint32_t rows = piece * 16 < place.cols * Shape::kElementBytes ? place.rows : 0;
#pragma unroll 1
  for (uint32_t row = first; row < rows; row += kStep) {
    CopyToShared16(to + (row - first) * Shape::kRowBytes, from);
    from = MultiplyAddWide(kStep, row_bytes, from);
  }
}

// Replaces what this thread's StartLoad() has copied by what the source stands for. After
// WaitForCopies(), before the barrier.
template <bool kF32>
__device__ __forceinline__ void Activate(const Source& x, const TilePlace& place,
                                         TileMemory<kF32>& memory) {
  if constexpr (!kF32) {
    if (!x.squared_relu) return;
    using Shape = TileShape<kF32>;
    constexpr uint32_t kPieces = Shape::kRowBytes / 16;
    constexpr uint32_t kStep = kTileThreads / kPieces;
    const uint32_t piece = threadIdx.x % kPieces;
    if (piece * 16 >= place.cols * Shape::kElementBytes) return;
#pragma unroll 4
    for (uint32_t row = threadIdx.x / kPieces; row < place.rows; row += kStep) {
      uint4& at = *reinterpret_cast<uint4*>(memory.x + row * Shape::kRowBytes +
                                            16 * SwizzledPiece<kF32>(piece));
      at = SquaredRelu(at);
    }
  }
}

// Element (row, col) of the tile.
template <bool kF32>
__device__ __forceinline__ float TileElement(const TileMemory<kF32>& memory, uint32_t row,
                                             uint32_t col) {
  using Shape = TileShape<kF32>;
  const unsigned char* at =
      memory.x + row * Shape::kRowBytes + SwizzledByte<kF32>(col * Shape::kElementBytes);
  if constexpr (kF32) {
    return *reinterpret_cast<const float*>(at);
  } else {
    return DecodeBf16(*reinterpret_cast<const uint16_t*>(at));
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
