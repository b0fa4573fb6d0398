// The general amax pass: of the values that are quantised, after a Hadamard transform of any size,
// and of each line for blocks that are whole lines. Also launches the general kernels.
#include "kernels/cuda/general_launch.h"
#include "kernels/cuda/general_tile.cuh"
#include "kernels/cuda/quantize_kernels.h"

namespace nibble::gpu {
namespace {

// Tiles beyond this number are taken by the same thread blocks in turn.
constexpr int64_t kMostBlocks = int64_t{1} << 20;

template <bool kColumn>
__global__ __launch_bounds__(kGeneralThreads,
                             2) void GeneralAmax(const __grid_constant__ Source x,
                                                 const __grid_constant__ CopyArgs copy) {
  GeneralMemory& memory = *reinterpret_cast<GeneralMemory*>(DynamicShared());
  const int64_t tiles = GeneralTiles(x);
  ExactAmax all;
#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const GeneralPlace place = GeneralPlaceOf<kColumn>(x, tile);
    TakeTile<kColumn>(x, copy, place, memory);
#pragma unroll 1
    for (uint32_t unit = threadIdx.x; unit < kGeneralUnits; unit += kGeneralThreads) {
      const uint32_t line = UnitLine<kColumn>(unit);
      float v[16];
      LoadUnit<kColumn>(memory, line, UnitGroup<kColumn>(unit), v);
      ExactAmax amax;
#pragma unroll
      for (int i = 0; i < 16; ++i) amax.Add(v[i]);
      all.bits = MaxBits<uint32_t>(all.bits, amax.bits);
      all.non_finite += amax.non_finite;
      // Lines outside the source are zero.
      if (copy.line_amax != nullptr && amax.bits != 0) {
        atomicMax(copy.line_amax + (kColumn ? place.col : place.row) + line, amax.bits);
      }
    }
  }
  const uint32_t bits = __reduce_max_sync(0xffffffffu, all.bits);
  if (threadIdx.x % 32 == 0) atomicMax(&copy.figures->amax_bits, bits);
  if (all.non_finite != 0) atomicAdd(&copy.figures->non_finite, all.non_finite);
}

}  // namespace

cudaError_t LaunchGeneralKernel(GeneralKernel kernel, const Source& x, const CopyArgs& copy,
                                cudaStream_t stream) {
  constexpr int kBytes = sizeof(GeneralMemory);
  const int64_t tiles = GeneralTiles(x);
  const unsigned grid = static_cast<unsigned>(tiles < kMostBlocks ? tiles : kMostBlocks);
  return Launch(kernel, dim3(grid), kGeneralThreads, kBytes, stream, x, copy);
}

cudaError_t LaunchGeneralAmax(const QuantizeArgs& args, int copy, cudaStream_t stream) {
  const CopyArgs& of = args.copy[copy];
  return LaunchGeneralKernel(of.column ? GeneralAmax<true> : GeneralAmax<false>, args.x, of,
                             stream);
}

cudaError_t LaunchGeneral(const QuantizeArgs& args, int copy, bool statistics,
                          cudaStream_t stream) {
  const CopyArgs& of = args.copy[copy];
  switch (of.code_type) {
    case CodeType::kE2M1:
      return LaunchGeneralE2m1(args.x, of, statistics, stream);
    case CodeType::kE4M3:
      return LaunchGeneralE4m3(args.x, of, statistics, stream);
    case CodeType::kE5M2:
      break;
  }
  return LaunchGeneralE5m2(args.x, of, statistics, stream);
}

}  // namespace nibble::gpu
