// The fast quantising kernel of one-byte elements, rounded to nearest, without a transform: a
// thread block copies a tile of 128 × 128 to shared memory once and writes the row copy, the column
// copy or both from it. Blocks lie inside a tile, or are the tensor, whose amax is known.
//
// A tile with NaN or infinity is redone with the formulas of general_kernel.cuh at the end; the
// fast phases do not test single numbers.
//
// Included by the .cu files that instantiate it, so that they compile in parallel.
//
// Thread-safety: as device code; thread blocks share nothing but their inputs and the heads.
#ifndef NIBBLE_KERNELS_CUDA_BYTE_KERNEL_CUH_
#define NIBBLE_KERNELS_CUDA_BYTE_KERNEL_CUH_

#include <cuda_runtime.h>

#include "kernels/cuda/block_sums.cuh"
#include "kernels/cuda/byte_launch.h"
#include "kernels/cuda/byte_phases.cuh"
#include "kernels/cuda/byte_tile.cuh"
#include "kernels/cuda/general_kernel.cuh"

namespace nibble::gpu {

// The amax of the block of element `along` of line `line` of a copy of a tile.
template <bool kF32, bool kColumn, ByteBlocks kBlocks>
__device__ __forceinline__ uint32_t ExactBlockAmax(const ByteMemory<kF32>& memory, uint32_t line,
                                                   uint32_t along, uint32_t known) {
  if constexpr (kBlocks == ByteBlocks::kTensor || kBlocks == ByteBlocks::kSquare) return known;
  constexpr uint32_t kLength = kBlocks == ByteBlocks::kLine32 ? 32 : 128;
  ExactAmax amax;
#pragma unroll 1
  for (uint32_t i = along / kLength * kLength; i < along / kLength * kLength + kLength; ++i) {
    amax.Add(ByteElement<kF32>(memory, kColumn ? i : line, kColumn ? line : i));
  }
  return amax.bits;
}

// A whole tile of one copy from the exact formulas.
template <class E, bool kF32, bool kColumn, ByteBlocks kBlocks>
__device__ __forceinline__ void ExactByteTile(const CopyArgs& copy, const BytePlace& place,
                                              const ByteMemory<kF32>& memory, uint32_t known) {
  const uint32_t lines = kColumn ? place.cols : place.rows;
  const uint32_t groups = (kColumn ? place.rows : place.cols) / 16;
  StatSums none;
#pragma unroll 1
  for (uint32_t unit = threadIdx.x; unit < lines * groups; unit += kByteThreads) {
    const uint32_t line = unit % lines;
    const uint32_t along = 16 * (unit / lines);
    float v[16];
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i) {
      v[i] = ByteElement<kF32>(memory, kColumn ? along + i : line, kColumn ? line : along + i);
    }
    const uint32_t bits = ExactBlockAmax<kF32, kColumn, kBlocks>(memory, line, along, known);
    const BlockScale scale = ScaleOf<E>(copy.scale_type, FromBits<float>(bits), {});
    const UnitCodes<E> codes = EncodeUnit<E, false>(v, scale, false, {}, 0.0f, 0.0f, none);
    const int64_t copy_line = (kColumn ? place.col : place.row) + line;
    const int64_t copy_along = (kColumn ? place.row : place.col) + along;
    if (copy.codes != nullptr) {
      StoreCodeRun<E>(copy.codes + copy_line * copy.code_stride + copy_along, copy.code_stride, 16,
                      codes);
      // Square blocks and tensors write theirs in the kernel.
      if constexpr (kBlocks == ByteBlocks::kLine32 || kBlocks == ByteBlocks::kLine128) {
        StoreByteScale<kBlocks>(
            copy, copy_line * copy.scale_stride + copy_along / copy.block_length, scale.bits);
      }
    }
    if (copy.emulated != nullptr) {
      StoreEmulatedUnit<E, kColumn>(copy, copy_line, copy_along, 16, codes);
    }
  }
}

// Writes the scale of a square block or of the tensor; by one thread.
template <class E, ByteBlocks kBlocks>
__device__ __forceinline__ void StoreCommonScale(const CopyArgs& copy, const BytePlace& place,
                                                 uint32_t amax_bits) {
  if (copy.codes == nullptr) return;
  const uint32_t bits = ByteScaleOf<E, kBlocks>(amax_bits).bits;
  if constexpr (kBlocks == ByteBlocks::kSquare) {
    const int64_t line = (copy.column ? place.col : place.row) / kByteTile;
    const int64_t along = (copy.column ? place.row : place.col) / kByteTile;
    StoreByteScale<kBlocks>(copy, line * copy.scale_stride + along, bits);
  } else if (kBlocks == ByteBlocks::kTensor && place.row == 0 && place.col == 0) {
    StoreByteScale<kBlocks>(copy, 0, bits);
  }
}

template <class E, bool kF32, bool kRow, bool kColumn, ByteBlocks kBlocks>
__global__ __launch_bounds__(kByteThreads,
                             kF32 ? 2
                                  : 4) void ByteKernel(const __grid_constant__ QuantizeArgs args) {
  ByteMemory<kF32>& memory = *reinterpret_cast<ByteMemory<kF32>*>(DynamicShared());
  // The row copy comes first if there are both.
  const CopyArgs& row_copy = args.copy[0];
  const CopyArgs& column_copy = args.copy[kRow ? 1 : 0];
  constexpr bool kCommon = kBlocks == ByteBlocks::kSquare || kBlocks == ByteBlocks::kTensor;

  const BytePlace place = BytePlaceOf(args.x);
  if (place.rows == 0) return;
  StartByteLoad<kF32>(args.x, place, memory);
  const uint32_t row_amax = BitsOf<float>(row_copy.figures->tensor.amax);
  const uint32_t column_amax = BitsOf<float>(column_copy.figures->tensor.amax);
  WaitForCopies();
  ActivateBytes<kF32>(args.x, memory);
  __syncthreads();

  uint32_t largest = 0;
  if constexpr (kCommon) {
    PostWarp<kF32>(ShareAmax<kF32>(memory), memory);
    __syncthreads();
    largest = LargestOfWarps<kF32>(memory);
  }
  const auto known = [&](uint32_t tensor) {
    return kBlocks == ByteBlocks::kSquare ? largest : tensor;
  };
  if constexpr (kRow) {
    const uint32_t seen = ByteRows<E, kF32, kBlocks>(row_copy, place, memory, known(row_amax));
    if constexpr (!kCommon) largest = seen;
  }
  if constexpr (kColumn) {
    const uint32_t seen =
        ByteColumns<E, kF32, kBlocks>(column_copy, place, memory, known(column_amax));
    if constexpr (!kCommon) largest = MaxBits<uint32_t>(largest, seen);
  }
  if constexpr (!kCommon) PostWarp<kF32>(largest, memory);
  // Also orders the phases' writes before those of the exact formulas, which overwrite them.
  const bool bad = __syncthreads_or(largest >= kInfinityBits);
  if constexpr (!kCommon) largest = LargestOfWarps<kF32>(memory);
  uint32_t non_finite = 0;
  if (bad) {
    const ExactAmax share = ExactShareAmax<kF32>(memory);
    __syncthreads();  // the largest was read
    PostWarp<kF32>(share.bits, memory);
    non_finite = static_cast<uint32_t>(BlockSum<kByteThreads>(share.non_finite));
    largest = LargestOfWarps<kF32>(memory);
    if constexpr (kRow) {
      ExactByteTile<E, kF32, false, kBlocks>(row_copy, place, memory, known(row_amax));
    }
    if constexpr (kColumn) {
      ExactByteTile<E, kF32, true, kBlocks>(column_copy, place, memory, known(column_amax));
    }
  } else if (kColumn && column_copy.codes != nullptr) {
    StoreStagedBytes<kF32>(column_copy, place, memory);
  }
  if (threadIdx.x != 0) return;
  if constexpr (kRow) {
    StoreCommonScale<E, kBlocks>(row_copy, place, known(row_amax));
    AddToHead(row_copy, largest, non_finite);
  }
  if constexpr (kColumn) {
    StoreCommonScale<E, kBlocks>(column_copy, place, known(column_amax));
    AddToHead(column_copy, largest, non_finite);
  }
}

template <class E, bool kF32, bool kRow, bool kColumn, ByteBlocks kBlocks>
cudaError_t LaunchByteKernel(const QuantizeArgs& args, cudaStream_t stream) {
  const auto kernel = ByteKernel<E, kF32, kRow, kColumn, kBlocks>;
  constexpr int kBytes = sizeof(ByteMemory<kF32>);
  const auto tiles = [](int64_t size, int64_t by) {
    return static_cast<unsigned>((size + by - 1) / by);
  };
  const dim3 grid(kByteBand, tiles(args.x.cols, kByteTile),
                  tiles(args.x.rows, int64_t{kByteTile} * kByteBand));
  return Launch(kernel, grid, kByteThreads, kBytes, stream, args);
}

template <class E, ByteBlocks kBlocks, bool kF32>
cudaError_t LaunchByteCopies(const QuantizeArgs& args, cudaStream_t stream) {
  if (args.copies == 2) return LaunchByteKernel<E, kF32, true, true, kBlocks>(args, stream);
  return args.copy[0].column ? LaunchByteKernel<E, kF32, false, true, kBlocks>(args, stream)
                             : LaunchByteKernel<E, kF32, true, false, kBlocks>(args, stream);
}

template <class E, ByteBlocks kBlocks>
cudaError_t LaunchByteOf(const QuantizeArgs& args, cudaStream_t stream) {
  return args.x.f32 ? LaunchByteCopies<E, kBlocks, true>(args, stream)
                    : LaunchByteCopies<E, kBlocks, false>(args, stream);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_BYTE_KERNEL_CUH_
