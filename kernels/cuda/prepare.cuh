// Computes everything that a copy's quantising kernel reads, and its head, from the copy's amax.
//
// Thread-safety: run by all threads of one thread block, after the amax of the copy is complete.
#ifndef NIBBLE_KERNELS_CUDA_PREPARE_CUH_
#define NIBBLE_KERNELS_CUDA_PREPARE_CUH_

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/quantize_args.h"

namespace nibble::gpu {

__device__ __forceinline__ void PrepareCopy(const CopyArgs& copy) {
  CopyFigures& figures = *copy.figures;
  // Other thread blocks wrote these with atomics: read past this multiprocessor's own cache.
  const uint32_t found = __ldcg(&figures.amax_bits);
  const unsigned long long non_finite = __ldcg(&figures.non_finite);
  const float amax = copy.amax != nullptr ? *copy.amax : FromBits<float>(found);
  const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(amax, copy.divide_first);
  for (uint32_t code = threadIdx.x; code < 128; code += blockDim.x) {
    figures.factor[code] = FactorOf(code, tensor, copy.stochastic, copy.hadamard);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const float largest = copy.statistics_amax != nullptr ? *copy.statistics_amax : amax;
  figures.tensor = tensor;
  figures.norm = StatNormFor(largest, amax);
  figures.plain_range = RangeIsPlain(tensor) ? 1u : 0u;
  figures.random_step = copy.step != nullptr ? static_cast<uint32_t>(*copy.step) : copy.random.step;
  figures.amax_bits = 0;
  figures.non_finite = 0;
  figures.tickets = 0;
  *copy.head = {amax, 0, copy.amax_pass ? non_finite : 0, StatSums()};
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_PREPARE_CUH_
