// The fast kernels of one-byte elements with a scale per 32 or 128 of a line; see byte_kernel.cuh.
#include "kernels/cuda/byte_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchByteLine32(const QuantizeArgs& args, cudaStream_t stream) {
  return LaunchByteOf<E4M3, ByteBlocks::kLine32>(args, stream);
}

cudaError_t LaunchByteLine128(const QuantizeArgs& args, cudaStream_t stream) {
  return LaunchByteOf<E4M3, ByteBlocks::kLine128>(args, stream);
}

}  // namespace nibble::gpu
