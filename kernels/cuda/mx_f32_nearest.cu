// The fast quantising kernel of MXFP4 for FP32 sources and nearest rounding; see mx_kernel.cuh.
#include "kernels/cuda/mx_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchMxF32Nearest(const TilePair& pair, cudaStream_t stream) {
  return LaunchMxOf<true, false>(pair, stream);
}

}  // namespace nibble::gpu
