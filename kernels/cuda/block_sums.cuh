// What thread blocks add to a copy's head: sums and maxima of integers, so that the order does not
// matter.
//
// Thread-safety: functions with kThreads are called by all threads of a thread block of that size.
#ifndef NIBBLE_KERNELS_CUDA_BLOCK_SUMS_CUH_
#define NIBBLE_KERNELS_CUDA_BLOCK_SUMS_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/quantize_args.h"
#include "kernels/formats/statistics.h"

namespace nibble::gpu {

// Sum over a thread block, returned to every thread.
template <int kThreads>
__device__ unsigned long long BlockSum(unsigned long long value) {
  __shared__ unsigned long long warp_sum[kThreads / 32];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warp_sum[threadIdx.x / 32] = value;
  __syncthreads();
  unsigned long long total = 0;
  for (unsigned long long part : warp_sum) total += part;
  return total;
}

template <int kThreads>
__device__ void AddAtomically(uint64_t& to, unsigned long long value) {
  const unsigned long long total = BlockSum<kThreads>(value);
  if (threadIdx.x == 0 && total != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&to), total);
  }
}

template <int kThreads>
__device__ void AddAtomically(StatSums& to, const StatSums& sums) {
  AddAtomically<kThreads>(to.error_coarse, sums.error_coarse);
  AddAtomically<kThreads>(to.error_fine, sums.error_fine);
  AddAtomically<kThreads>(to.square_coarse, sums.square_coarse);
  AddAtomically<kThreads>(to.square_fine, sums.square_fine);
  AddAtomically<kThreads>(to.nonzero, sums.nonzero);
  AddAtomically<kThreads>(to.underflow, sums.underflow);
  AddAtomically<kThreads>(to.clipped, sums.clipped);
  // Both fit in 32 bits: FP32 bits, or all ones for none.
  const uint32_t least = __reduce_min_sync(0xffffffffu, static_cast<uint32_t>(sums.min_scale));
  const uint32_t most = __reduce_max_sync(0xffffffffu, static_cast<uint32_t>(sums.max_scale));
  if (threadIdx.x % 32 == 0) {
    atomicMin(reinterpret_cast<unsigned long long*>(&to.min_scale), least);
    atomicMax(reinterpret_cast<unsigned long long*>(&to.max_scale), most);
  }
}

// Adds what one thread has of a tile's figures to the head of a copy that has no amax pass.
__device__ __forceinline__ void AddToHead(const CopyArgs& copy, uint32_t amax_bits,
                                          uint32_t non_finite) {
  if (copy.amax_pass) return;
  if (non_finite != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&copy.head->non_finite),
              static_cast<unsigned long long>(non_finite));
  }
  if (!copy.find_amax) return;
  // Most tiles do not raise the amax.
  uint32_t* const head = reinterpret_cast<uint32_t*>(&copy.head->amax);
  if (amax_bits > __ldcg(head)) atomicMax(head, amax_bits);
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_BLOCK_SUMS_CUH_
