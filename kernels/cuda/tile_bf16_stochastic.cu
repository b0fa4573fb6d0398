// The fused quantising kernel for Bf16 sources and stochastic rounding; see tile_kernel.cuh.
#include "kernels/cuda/tile_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchTileBf16Stochastic(const QuantizeArgs& args, cudaStream_t stream) {
  return LaunchTileOf<false, true>(args, stream);
}

}  // namespace nibble::gpu
