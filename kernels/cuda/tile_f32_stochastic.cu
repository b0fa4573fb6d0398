// The fused quantising kernel for F32 sources and stochastic rounding; see tile_kernel.cuh.
#include "kernels/cuda/tile_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchTileF32Stochastic(const QuantizeArgs& args, cudaStream_t stream) {
  return LaunchTileOf<true, true>(args, stream);
}

}  // namespace nibble::gpu
