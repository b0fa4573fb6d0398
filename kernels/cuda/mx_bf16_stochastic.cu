// The fast quantising kernel of MXFP4 for BF16 sources and stochastic rounding; see mx_kernel.cuh.
#include "kernels/cuda/mx_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchMxBf16Stochastic(const TilePair& pair, cudaStream_t stream) {
  return LaunchMxOf<false, true>(pair, stream);
}

}  // namespace nibble::gpu
