// Computes everything that the copies' quantising kernel reads, and their heads, from their amax.
//
// Thread-safety: run by all threads of one thread block of kPrepareThreads, after the amax of all
// copies is complete.
#ifndef NIBBLE_KERNELS_CUDA_PREPARE_CUH_
#define NIBBLE_KERNELS_CUDA_PREPARE_CUH_

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/quantize_args.h"

namespace nibble::gpu {

// A thread for each scale code of each copy: the copies wait for memory and divide together.
inline constexpr uint32_t kPrepareThreads = 2 * 128;

__device__ __forceinline__ void PrepareCopies(const QuantizeArgs& args) {
  const uint32_t index = threadIdx.x / 128;
  const uint32_t code = threadIdx.x % 128;
  const bool used = index < static_cast<uint32_t>(args.copies);
  const CopyArgs& copy = args.copy[used ? index : 0];
  CopyFigures& figures = *copy.figures;
  // Other thread blocks wrote these with atomics: read past this multiprocessor's own cache.
  const uint32_t found = __ldcg(&figures.amax_bits);
  const unsigned long long non_finite = __ldcg(&figures.non_finite);
  const float amax = copy.amax != nullptr ? *copy.amax : FromBits<float>(found);
  const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(amax, copy.divide_first);
  if (used) figures.factor[code] = FactorOf(code, tensor, copy.hadamard);
  __syncthreads();
  if (!used || code != 0) return;
  const float largest = copy.statistics_amax != nullptr ? *copy.statistics_amax : amax;
  figures.tensor = tensor;
  figures.norm = StatNormFor(largest, amax);
  figures.plain_range = RangeIsPlain(tensor) ? 1u : 0u;
  figures.random_step = copy.step != nullptr ? static_cast<uint32_t>(*copy.step) : copy.random.step;
  figures.start = PhiloxStartOf({copy.random.seed, copy.random.stream, figures.random_step},
                                copy.keys, static_cast<uint32_t>(copy.first_block >> 32));
  figures.amax_bits = 0;
  figures.non_finite = 0;
  figures.tickets = 0;
  *copy.head = {amax, 0, copy.amax_pass ? non_finite : 0, StatSums()};
}

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_PREPARE_CUH_
