// The tile of the fast MXFP4 kernels, whose form and loading are those of tile_memory.cuh; the amax
// of its 32×32 blocks, and the row phase.
//
// Ownership: a thread block's shared memory. Thread-safety: as device code; callers place the
// barriers.
#ifndef NIBBLE_KERNELS_CUDA_MX_ROWS_CUH_
#define NIBBLE_KERNELS_CUDA_MX_ROWS_CUH_

#include "kernels/cuda/copy_store.cuh"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/mx_encode.h"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/tile_memory.cuh"
#include "kernels/cuda/tile_rows.cuh"
#include "kernels/formats/minifloat.h"

namespace nibble::gpu {

inline constexpr uint32_t kMxWarps = kTileThreads / 32;

template <bool kF32>
struct MxMemory {
  TileMemory<kF32> tile;
  // Largest magnitudes of 32 columns of each of four strips of rows, one per warp.
  uint32_t strip_amax[kMxWarps][kTileCols / 32];
  uint32_t warp_amax[2][kMxWarps];  // of the row copy and of the column copy
};

// Each warp takes a strip of the tile and each thread four of its columns. Returns the largest
// magnitude of a thread's share; above infinity for a NaN.
template <bool kF32>
__device__ __forceinline__ uint32_t MxStripAmax(const TilePlace& place, MxMemory<kF32>& memory) {
  using Shape = TileShape<kF32>;
  constexpr uint32_t kStrip = Shape::kRows / kMxWarps;
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t lane = threadIdx.x % 32;
  uint32_t bits = 0;
  if (warp * kStrip < place.rows && 4 * lane < place.cols) {
    const unsigned char* from = memory.tile.x + warp * kStrip * Shape::kRowBytes +
                                SwizzledByte<kF32>(4 * lane * Shape::kElementBytes);
    if constexpr (kF32) {
      float largest = 0;
#pragma unroll
      for (uint32_t i = 0; i < kStrip; ++i) {
        const float4 in = *reinterpret_cast<const float4*>(from + i * Shape::kRowBytes);
        largest = LargerMagnitude(LargerMagnitude(largest, in.x), in.y);
        largest = LargerMagnitude(LargerMagnitude(largest, in.z), in.w);
      }
      bits = BitsOf<float>(largest);
    } else {
      uint32_t pair = 0;
#pragma unroll
      for (uint32_t i = 0; i < kStrip; ++i) {
        const uint2 in = *reinterpret_cast<const uint2*>(from + i * Shape::kRowBytes);
        pair = LargerMagnitudes(LargerMagnitudes(pair, in.x), in.y);
      }
      bits = MaxBits<uint32_t>((pair << 16) & kMagnitudeBits, pair & 0x7fff0000u);
    }
  }
  uint32_t of_block = bits;
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    of_block = MaxBits<uint32_t>(of_block, __shfl_xor_sync(0xffffffffu, of_block, step));
  }
  if (lane % 8 == 0) memory.strip_amax[warp][lane / 8] = of_block;
  return bits;
}

// The amax of the 32×32 block of an element.
template <bool kF32>
__device__ __forceinline__ uint32_t MxSquareAmax(const MxMemory<kF32>& memory, uint32_t row,
                                                 uint32_t col) {
  if constexpr (kF32) {
    return MaxBits<uint32_t>(memory.strip_amax[row / 32 * 2][col / 32],
                             memory.strip_amax[row / 32 * 2 + 1][col / 32]);
  } else {
    return memory.strip_amax[row / 32][col / 32];
  }
}

// A thread keeps 16 columns of the tile, half of a block, and goes down its rows. Called by all
// threads. Returns the largest magnitude of a thread's blocks; above infinity for a NaN.
template <bool kF32, bool kStochastic, bool kSquare>
__device__ __forceinline__ uint32_t MxRows(const CopyArgs& copy, const TilePlace& place,
                                           const MxMemory<kF32>& memory) {
  using Shape = TileShape<kF32>;
  constexpr uint32_t kAcross = kTileCols / 16;
  constexpr uint32_t kStep = kTileThreads / kAcross;
  const uint32_t half = threadIdx.x % kAcross;
  const uint32_t rows = Kept(place.rows);
  // Threads beyond the tile repeat its last block and row: the halves of a block stay together.
  const bool has_cols = 16 * half < place.cols;
  const uint32_t group = has_cols ? half : place.cols / 16 - 2 + half % 2;
  const uint32_t run =
      Kept(SharedAddress(memory.tile.x) + SwizzledByte<kF32>(group * 16 * Shape::kElementBytes));
  const uint32_t global_group = place.col / 16 + group;
  const uint64_t codes_to =
      Kept(AddressOf(copy.codes, place.row, copy.code_stride, 8 * global_group));
  const uint64_t scale_to = Kept(AddressOf(copy.scales, kSquare ? place.row / 32 : place.row,
                                           copy.scale_stride, global_group / 2));
  const uint64_t emulated_to =
      Kept(AddressOf(copy.emulated, place.row, 2 * copy.emulated_stride, 32 * global_group));
  const uint32_t code_stride = static_cast<uint32_t>(copy.code_stride);
  const uint32_t scale_stride = static_cast<uint32_t>(copy.scale_stride);
  const uint32_t emulated_stride = static_cast<uint32_t>(2 * copy.emulated_stride);
  const uint32_t row_blocks = static_cast<uint32_t>(copy.row_blocks);
  const PhiloxStart start = kStochastic ? copy.figures->start : PhiloxStart();
  const uint32_t first_block =
      MultiplyAdd(place.row, row_blocks, static_cast<uint32_t>(copy.first_block) + global_group);
  const uint32_t packed = Kept(copy.codes != nullptr ? 1u : 0u);
  const uint32_t emulated = Kept(copy.emulated != nullptr ? 1u : 0u);
  uint32_t largest = 0;
#pragma unroll 1
  for (uint32_t at = threadIdx.x / kAcross; at - threadIdx.x / kAcross % 4 < rows; at += kStep) {
    const uint32_t row = MinBits<uint32_t>(at, rows - 1);
    float v[16];
    uint32_t signs[2];
    uint32_t amax_bits = TakeRun<kF32>(run + row * Shape::kRowBytes, v, signs);
    if constexpr (kSquare) {
      amax_bits = MxSquareAmax<kF32>(memory, row, 16 * group);
    } else {
      amax_bits = MaxBits<uint32_t>(amax_bits, __shfl_xor_sync(0xffffffffu, amax_bits, 1));
      largest = MaxBits<uint32_t>(largest, amax_bits);
    }
    PhiloxWords<uint32_t> random = {};
    if constexpr (kStochastic) {
      random = RoundingBits(start, copy.keys, MultiplyAdd(row, row_blocks, first_block));
    }
    const uint32_t scale_code = E8M0::EncodeRoundedUp<E2M1>(amax_bits);
    const BlockCodes codes =
        EncodeBlock<kStochastic>(v, MxFactorOf(scale_code), false, signs[0], signs[1], random);
    if (!has_cols || at >= rows) continue;
    if (packed != 0) {
      StoreGlobal8(MultiplyAddWide(row, code_stride, codes_to), codes.word[0], codes.word[1]);
      if (half % 2 == 0 && (!kSquare || row % 32 == 0)) {
        StoreGlobal1(MultiplyAddWide(kSquare ? row / 32 : row, scale_stride, scale_to), scale_code);
      }
    }
    if (emulated != 0) {
      StoreEmulatedRun(MultiplyAddWide(row, emulated_stride, emulated_to), codes,
                       MxEmulationTableFor(scale_code));
    }
  }
  return largest;
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_MX_ROWS_CUH_
