// The fast quantising kernel of MXFP4 for BF16 sources and nearest rounding; see mx_kernel.cuh.
#include "kernels/cuda/mx_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchMxBf16Nearest(const TilePair& pair, cudaStream_t stream) {
  return LaunchMxOf<false, false>(pair, stream);
}

}  // namespace nibble::gpu
