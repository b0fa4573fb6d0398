// The fast quantising kernel of MXFP4 for FP32 sources and stochastic rounding; see mx_kernel.cuh.
#include "kernels/cuda/mx_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchMxF32Stochastic(const TilePair& pair, cudaStream_t stream) {
  return LaunchMxOf<true, true>(pair, stream);
}

}  // namespace nibble::gpu
