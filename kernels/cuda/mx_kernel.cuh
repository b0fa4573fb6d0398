// The fused quantising kernel of MXFP4: one pass over the source, without an amax pass before it. A
// thread block copies a tile to shared memory once and writes the row copy, the column copy or both
// from it, as the kernel of NVFP4 does (tile_kernel.cuh), whose tile, roundings and stores it
// shares. Blocks of 32 are two runs of 16 with random bits of their own: in the row phase two
// neighbouring threads, in the column phase two halves of a thread's rows.
//
// A tile with NaN or infinity is redone with the exact formulas at the end; the fast phases do not
// test single numbers.
//
// Included by the .cu files that instantiate it, one per source type and rounding, so that they
// compile in parallel.
//
// Thread-safety: as device code; thread blocks share nothing but their inputs and the heads.
#ifndef NIBBLE_KERNELS_CUDA_MX_KERNEL_CUH_
#define NIBBLE_KERNELS_CUDA_MX_KERNEL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/block_sums.cuh"
#include "kernels/cuda/copy_store.cuh"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/general_kernel.cuh"
#include "kernels/cuda/mx_columns.cuh"
#include "kernels/cuda/mx_rows.cuh"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/tile_launch.h"
#include "kernels/cuda/tile_memory.cuh"

namespace nibble::gpu {

// The amax of a 32×32 block, without NaN.
template <bool kF32>
__device__ __forceinline__ uint32_t ExactSquareAmax(const TileMemory<kF32>& tile, uint32_t row,
                                                    uint32_t col) {
  ExactAmax amax;
#pragma unroll 1
  for (uint32_t i = 0; i < 32 * 32; ++i) {
    amax.Add(TileElement<kF32>(tile, row + i / 32, col + i % 32));
  }
  return amax.bits;
}

// A whole tile of one copy from the exact formulas, with its figures.
template <bool kF32, bool kColumn, bool kHadamard, bool kSquare>
__device__ __forceinline__ void ExactMxTile(const CopyArgs& copy, const TilePlace& place,
                                            const TileMemory<kF32>& tile) {
  const uint32_t lines = kColumn ? place.cols : place.rows;
  const uint32_t blocks = (kColumn ? place.rows : place.cols) / 32;
  ExactAmax found;
  StatSums none;
#pragma unroll 1
  for (uint32_t unit = threadIdx.x; unit < lines * blocks; unit += kTileThreads) {
    const uint32_t line = unit % lines;
    const uint32_t block = unit / lines;
    float v[2][16];
#pragma unroll
    for (uint32_t i = 0; i < 32; ++i) {
      const uint32_t along = 32 * block + i;
      v[i / 16][i % 16] =
          kColumn ? TileElement<kF32>(tile, along, line) : TileElement<kF32>(tile, line, along);
    }
    if constexpr (kHadamard) {
#pragma unroll
      for (uint32_t i = 0; i < 32; ++i) {
        v[i / 16][i % 16] =
            FromBits<float>(RoundToBf16Bits<float>(v[i / 16][i % 16]) ^ copy.sign_bits[i]);
      }
      HadamardSums32(v[0], v[1]);
#pragma unroll
      for (uint32_t i = 0; i < 32; ++i) {
        v[i / 16][i % 16] =
            FromBits<float>(RoundToBf16Bits<float>(v[i / 16][i % 16] * HadamardNorm(32)));
      }
    }
    ExactAmax amax;
#pragma unroll
    for (uint32_t i = 0; i < 32; ++i) amax.Add(v[i / 16][i % 16]);
    found.non_finite += amax.non_finite;
    found.bits = MaxBits<uint32_t>(found.bits, amax.bits);
    if constexpr (kSquare) {
      amax.bits = kColumn ? ExactSquareAmax<kF32>(tile, 32 * block, line / 32 * 32)
                          : ExactSquareAmax<kF32>(tile, line / 32 * 32, 32 * block);
    }
    const BlockScale scale = MxBlock<E2M1>(FromBits<float>(amax.bits));
    const int64_t copy_line = (kColumn ? place.col : place.row) + line;
    const int64_t copy_along = (kColumn ? place.row : place.col) + 32 * block;
    if (copy.codes != nullptr) {
      copy.scales[(kSquare ? copy_line / 32 : copy_line) * copy.scale_stride + copy_along / 32] =
          static_cast<uint8_t>(scale.bits);
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      const int64_t along = copy_along + 16 * h;
      PhiloxWords<uint32_t> random = {};
      if (copy.stochastic) random = RandomBits(copy, copy_line, along / 16);
      const UnitCodes<E2M1> codes =
          EncodeUnit<E2M1, false>(v[h], scale, copy.stochastic, random, 0.0f, 0.0f, none);
      if (copy.codes != nullptr) {
        StoreCodeRun<E2M1>(copy.codes + copy_line * copy.code_stride + along / 2, copy.code_stride,
                           16, codes);
      }
      if (copy.emulated != nullptr) {
        StoreEmulatedUnit<E2M1, kColumn>(copy, copy_line, along, 16, codes);
      }
    }
  }
  AddToHead(copy, found.bits, found.non_finite);
}

template <bool kF32, bool kStochastic, bool kHadamard, bool kSquare>
__global__ __launch_bounds__(kTileThreads,
                             kF32 ? 4 : 5) void MxKernel(const __grid_constant__ TilePair args) {
  MxMemory<kF32>& memory = *reinterpret_cast<MxMemory<kF32>*>(DynamicShared());
  const CopyArgs& row_copy = args.row_copy;
  const CopyArgs& column_copy = args.column_copy;
  const bool staged = args.column && column_copy.codes != nullptr;

  const TilePlace place = PlaceOf<kF32>(args.x);
  if (place.rows == 0) return;
  StartLoad<kF32>(args.x, place, memory.tile);
  bool fast = true;
  if (kStochastic && args.row) fast = row_copy.one_start;
  if (kStochastic && args.column) fast = fast && column_copy.one_start;
  WaitForCopies();
  Activate<kF32>(args.x, place, memory.tile);
  __syncthreads();

  uint32_t row_largest = 0;
  uint32_t column_largest = 0;
  if constexpr (kSquare) {
    row_largest = MxStripAmax<kF32>(place, memory);
    column_largest = row_largest;
    __syncthreads();
  }
  if (fast && args.row) {
    const uint32_t seen = MxRows<kF32, kStochastic, kSquare>(row_copy, place, memory);
    if constexpr (!kSquare) row_largest = seen;
  }
  if (fast && args.column) {
    // The column phase overwrites the tile.
    if (args.row && staged) __syncthreads();
    const uint32_t seen =
        MxColumns<kF32, kStochastic, kHadamard, kSquare>(column_copy, place, memory);
    if constexpr (!kSquare) column_largest = seen;
  }
  row_largest = __reduce_max_sync(0xffffffffu, row_largest);
  column_largest = __reduce_max_sync(0xffffffffu, column_largest);
  if (threadIdx.x % 32 == 0) {
    memory.warp_amax[0][threadIdx.x / 32] = row_largest;
    memory.warp_amax[1][threadIdx.x / 32] = column_largest;
  }
  const bool bad = !fast || MaxBits<uint32_t>(row_largest, column_largest) >= kInfinityBits;
  // Also orders the phases' writes before those of the exact formulas, which overwrite them.
  if (!__syncthreads_or(bad)) {
    if (staged) MxStoreStaged<kF32>(column_copy, place, memory);
    if (threadIdx.x >= 2 || !(threadIdx.x == 0 ? args.row : args.column)) return;
    uint32_t largest = 0;
#pragma unroll
    for (uint32_t warp = 0; warp < kMxWarps; ++warp) {
      largest = MaxBits<uint32_t>(largest, memory.warp_amax[threadIdx.x][warp]);
    }
    AddToHead(threadIdx.x == 0 ? row_copy : column_copy, largest, 0);
    return;
  }
  if (fast && staged) {
    StartLoad<kF32>(args.x, place, memory.tile);
    WaitForCopies();
    Activate<kF32>(args.x, place, memory.tile);
    __syncthreads();
  }
  if (args.row) ExactMxTile<kF32, false, false, kSquare>(row_copy, place, memory.tile);
  if (args.column) ExactMxTile<kF32, true, kHadamard, kSquare>(column_copy, place, memory.tile);
}

template <bool kF32, bool kStochastic, bool kHadamard, bool kSquare>
cudaError_t LaunchMxKernel(const TilePair& args, cudaStream_t stream) {
  return LaunchOnTiles<kF32>(MxKernel<kF32, kStochastic, kHadamard, kSquare>,
                             sizeof(MxMemory<kF32>), args, stream);
}

template <bool kF32, bool kStochastic>
cudaError_t LaunchMxOf(const TilePair& args, cudaStream_t stream) {
  const CopyArgs& copy = args.column ? args.column_copy : args.row_copy;
  if (copy.block_lines == 32) {
    return LaunchMxKernel<kF32, kStochastic, false, true>(args, stream);
  }
  return copy.hadamard_size != 0 ? LaunchMxKernel<kF32, kStochastic, true, false>(args, stream)
                                 : LaunchMxKernel<kF32, kStochastic, false, false>(args, stream);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_MX_KERNEL_CUH_
