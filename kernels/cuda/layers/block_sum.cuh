// Sums and maxima over a block's threads, in an order that depends on the number of threads only.
//
// Thread-safety: every thread of the block makes the same calls.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_BLOCK_SUM_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_BLOCK_SUM_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"
#include "kernels/cuda/layers/warp_mma.cuh"

namespace nibble::gpu {

inline constexpr int kWarp = 32;
inline constexpr int kMostWarps = 32;

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int mask = kWarp / 2; mask > 0; mask /= 2) x += FromLane(x, mask);
  return x;
}

// What BlockSum needs in shared memory; a block's threads are whole warps.
struct SumSpace {
  float of_warp[kMostWarps];
};

// The sum of every thread's x, on all of them. The space may be used again after the next barrier
// that follows; consecutive calls alternate between two spaces.
__device__ __forceinline__ float BlockSum(float x, SumSpace& space) {
  x = WarpSum(x);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  if (warps == 1) return x;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (threadIdx.x % kWarp == 0) space.of_warp[warp] = x;
  __syncthreads();
  float sum = 0;
  for (int w = 0; w < warps; ++w) sum += space.of_warp[w];
  return sum;
}

// *amax = max(*amax, the largest x of the block); x is not negative, and not NaN.
__device__ __forceinline__ void RaiseAmax(float* amax, float x) {
  const uint32_t largest = __reduce_max_sync(0xffffffffu, BitsOf<float>(x));
  if (threadIdx.x % kWarp != 0) return;
  auto* const bits = reinterpret_cast<unsigned int*>(amax);
  if (largest > __ldcg(bits)) atomicMax(bits, largest);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_BLOCK_SUM_CUH_
