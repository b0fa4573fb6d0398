// The fused quantising kernel for F32 sources and nearest rounding; see tile_kernel.cuh.
#include "kernels/cuda/tile_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchTileF32Nearest(const QuantizeArgs& args, cudaStream_t stream) {
  return LaunchTileOf<true, false>(args, stream);
}

}  // namespace nibble::gpu
