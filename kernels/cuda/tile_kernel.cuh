// The fused quantising kernel: a thread block copies a tile of the source to shared memory once and
// computes the blocks of both the row copy and the column copy from it.
//
// Work per thread: whole blocks of 16. In the row phase a thread owns 16 neighbours of a row, in
// the column phase 16 rows of two neighbouring columns, so that shared memory is read word by word
// without conflicts. Row outputs are written at once (8 threads make 64 bytes of a copy row);
// column codes are staged in shared memory, so that each copy row receives its tile's codes in one
// run.
//
// Bounds on Hopper: 132 multiprocessors of four schedulers, each of which issues one instruction of
// 32 threads a clock; units for bit operations, minima and conversions accept half of that.
// Launch for BF16: 128 threads, 6 blocks per multiprocessor (35 KB of shared memory and at most 80
// registers a thread), thus 24 warps. Instructions per element of the fused pass with packed codes,
// counted in the SASS of CUDA 13.0 for sm_90a (loops of a whole tile; what is once per tile is
// divided by a thread's 128 elements):
//
//                             row phase   column phase   per tile   all
//   stochastic                     10.6           16.0        3.1   29.7
//     at half rate                  4.8            5.4
//   nearest                         8.8           14.2        2.8   25.8
//
// At 1.7 GHz the schedulers issue 28.7 · 10^12 a second: 0.97 · 10^12 elements stochastic, 1.11 ·
// 10^12 nearest. Memory at a copy's 4.25 TB/s passes 1.36 · 10^12 elements of 3.125 bytes. The pass
// is bound by instructions: at 71 % of a copy when stochastic, at 82 % when nearest, if no clock
// is lost.
//
// Tiles with NaN or infinity, and all tiles of a tensor outside RangeIsPlain, are redone with
// exact_block.h at the end; the fast phases do not test single numbers.
//
// Included by the .cu files that instantiate it, one per source type and rounding, so that they
// compile in parallel.
//
// Thread-safety: as device code; thread blocks share nothing but their inputs.
#ifndef NIBBLE_KERNELS_CUDA_TILE_KERNEL_CUH_
#define NIBBLE_KERNELS_CUDA_TILE_KERNEL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/copy_store.cuh"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/quantize_args.h"
#include "kernels/cuda/tile_columns.cuh"
#include "kernels/cuda/tile_launch.h"
#include "kernels/cuda/tile_memory.cuh"
#include "kernels/cuda/tile_rows.cuh"

namespace nibble::gpu {

// Computes a whole tile of one copy from the exact formulas.
template <bool kF32, bool kColumn, bool kSquare>
__device__ __forceinline__ uint32_t ExactTile(const CopyArgs& copy, const TilePlace& place,
                                              const TileMemory<kF32>& memory) {
  const Nvfp4::TensorScale tensor = copy.figures->tensor;
  const uint32_t lines = kColumn ? place.cols : place.rows;
  const uint32_t groups = (kColumn ? place.rows : place.cols) / 16;
  uint32_t non_finite = 0;
#pragma unroll 1
  for (uint32_t unit = threadIdx.x; unit < lines * groups; unit += kTileThreads) {
    const uint32_t line = unit % lines;
    const uint32_t group = unit / lines;
    float v[16];
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      const uint32_t along = 16 * group + i;
      v[i] =
          kColumn ? TileElement<kF32>(memory, along, line) : TileElement<kF32>(memory, line, along);
    }
    if (copy.hadamard) HadamardExactly(v, copy.sign_bits);
    ExactAmax amax;
#pragma unroll
    for (int i = 0; i < 16; ++i) amax.Add(v[i]);
    non_finite += amax.non_finite;
    if constexpr (kSquare) {
      amax.bits =
          kColumn ? memory.square_amax[group][line / 16] : memory.square_amax[line / 16][group];
    }
    const uint32_t global_line = (kColumn ? place.col : place.row) + line;
    const uint32_t global_group = (kColumn ? place.row : place.col) / 16 + group;
    PhiloxWords<uint32_t> random = {};
    if (copy.stochastic) {
      random = RandomBits(copy, global_line, global_group);
    }
    const ExactBlock block = EncodeExactly(v, amax.bits, tensor, copy.stochastic, random);
    StoreBlock(copy, global_line, global_group, block.codes, block.scale_code);
  }
  return non_finite;
}

// Whether a copy of this tile takes the phases' loops without tests: packed codes only, by the
// present formula, of a tile of whole pairs of rows.
template <bool kSquare>
__device__ __forceinline__ bool PlainPhase(const CopyArgs& copy, const TilePlace& place) {
  return !kSquare && copy.codes != nullptr && copy.emulated == nullptr && !copy.divide_first &&
         place.rows % kPlainRows == 0;
}

// Blocks of a multiprocessor that the registers of a kernel leave room for. For Blackwell the compiler needs some more registers
// than for Hopper where both copies and the transform are computed, and would spill them.
template <bool kF32, bool kBothTransformed>
__host__ __device__ constexpr int BlocksOfRegisters() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
  if (kBothTransformed) return 4;
#endif
  return TileShape<kF32>::kBlocks;
}

template <bool kF32, bool kRow, bool kColumn, bool kStochastic, bool kHadamard, bool kSquare>
__global__ __launch_bounds__(kTileThreads, (BlocksOfRegisters<kF32, kRow && kColumn && kHadamard>())) void TileKernel(
    const __grid_constant__ QuantizeArgs args) {
  TileMemory<kF32>& memory = *reinterpret_cast<TileMemory<kF32>*>(DynamicShared());
  // The row copy comes first if there are both.
  const CopyArgs& row_copy = args.copy[0];
  const CopyArgs& column_copy = args.copy[kRow ? 1 : 0];

  const TilePlace place = PlaceOf<kF32>(args.x);
  if (place.rows == 0) return;
  StartLoad<kF32>(args.x, place, memory);
  bool fast = true;
  if (kRow && kStochastic) fast = row_copy.one_start;
  if (kColumn && kStochastic) fast = fast && column_copy.one_start;
  static_assert(kTileThreads == 128);
  if (kRow) memory.row_factor[threadIdx.x] = row_copy.figures->factor[threadIdx.x];
  if (kColumn) memory.column_factor[threadIdx.x] = column_copy.figures->factor[threadIdx.x];
  if (kRow) fast = fast && row_copy.figures->plain_range != 0;
  if (kColumn) fast = fast && column_copy.figures->plain_range != 0;
  WaitForCopies();
  Activate<kF32>(args.x, place, memory);
  __syncthreads();

  bool bad = !fast;
  if constexpr (kSquare) {
    bad |= SquareAmax<kF32>(place, memory);
    __syncthreads();
  }
  if (fast) {
    if constexpr (kRow) {
      if (PlainPhase<kSquare>(row_copy, place)) {
        bad |= RowPhase<kF32, kStochastic, false, true>(row_copy, place, memory);
      } else {
        bad |= RowPhase<kF32, kStochastic, kSquare, false>(row_copy, place, memory);
      }
    }
    if constexpr (kColumn) {
      // The column phase overwrites the tile.
      if (kRow && column_copy.codes != nullptr) __syncthreads();
      if (PlainPhase<kSquare>(column_copy, place)) {
        bad |= ColumnPhase<kF32, kStochastic, kHadamard, false, true>(column_copy, place, memory);
      } else {
        bad |=
            ColumnPhase<kF32, kStochastic, kHadamard, kSquare, false>(column_copy, place, memory);
      }
    }
  }
  // Also orders the phases' writes before those of the exact formulas, which overwrite them.
  if (!__syncthreads_or(bad)) {
    if constexpr (kColumn) {
      if (column_copy.codes != nullptr) StoreStaged<kF32, kSquare>(column_copy, place, memory);
    }
    return;
  }
  if (fast && kColumn && column_copy.codes != nullptr) {
    StartLoad<kF32>(args.x, place, memory);
    WaitForCopies();
    Activate<kF32>(args.x, place, memory);
    __syncthreads();
  }
  if constexpr (kRow) {
    const uint32_t count = ExactTile<kF32, false, kSquare>(row_copy, place, memory);
    if (!row_copy.amax_pass && count != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&row_copy.head->non_finite), count);
    }
  }
  if constexpr (kColumn) {
    const uint32_t count = ExactTile<kF32, true, kSquare>(column_copy, place, memory);
    if (!column_copy.amax_pass && count != 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&column_copy.head->non_finite), count);
    }
  }
}

template <bool kF32, bool kRow, bool kColumn, bool kStochastic, bool kHadamard, bool kSquare>
cudaError_t LaunchTileKernel(const QuantizeArgs& args, cudaStream_t stream) {
  return LaunchOnTiles<kF32>(TileKernel<kF32, kRow, kColumn, kStochastic, kHadamard, kSquare>,
                             sizeof(TileMemory<kF32>), args, stream);
}

// The variants for one source type and rounding: which copies, which blocks, and whether the column
// copy is transformed.
template <bool kF32, bool kStochastic>
cudaError_t LaunchTileOf(const QuantizeArgs& args, cudaStream_t stream) {
  const bool row = !args.copy[0].column;
  const bool column = args.copy[args.copies - 1].column;
  const bool hadamard = args.copy[args.copies - 1].hadamard;
  if (args.copy[0].square) {
    return row && column
               ? LaunchTileKernel<kF32, true, true, kStochastic, false, true>(args, stream)
           : row ? LaunchTileKernel<kF32, true, false, kStochastic, false, true>(args, stream)
                 : LaunchTileKernel<kF32, false, true, kStochastic, false, true>(args, stream);
  }
  if (!column) return LaunchTileKernel<kF32, true, false, kStochastic, false, false>(args, stream);
  if (hadamard) {
    return row ? LaunchTileKernel<kF32, true, true, kStochastic, true, false>(args, stream)
               : LaunchTileKernel<kF32, false, true, kStochastic, true, false>(args, stream);
  }
  return row ? LaunchTileKernel<kF32, true, true, kStochastic, false, false>(args, stream)
             : LaunchTileKernel<kF32, false, true, kStochastic, false, false>(args, stream);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_TILE_KERNEL_CUH_
