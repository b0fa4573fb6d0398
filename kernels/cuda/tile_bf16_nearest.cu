// The fused quantising kernel for Bf16 sources and nearest rounding; see tile_kernel.cuh.
#include "kernels/cuda/tile_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchTileBf16Nearest(const QuantizeArgs& args, cudaStream_t stream) {
  return LaunchTileOf<false, false>(args, stream);
}

}  // namespace nibble::gpu
