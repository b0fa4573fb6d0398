// The fast kernels of one-byte elements with a scale per 128 by 128 or per tensor; see
// byte_kernel.cuh.
#include "kernels/cuda/byte_kernel.cuh"

namespace nibble::gpu {

cudaError_t LaunchByteSquare(const QuantizeArgs& args, cudaStream_t stream) {
  return LaunchByteOf<E4M3, ByteBlocks::kSquare>(args, stream);
}

cudaError_t LaunchByteTensor(const QuantizeArgs& args, cudaStream_t stream) {
  return args.copy[0].code_type == CodeType::kE4M3
             ? LaunchByteOf<E4M3, ByteBlocks::kTensor>(args, stream)
             : LaunchByteOf<E5M2, ByteBlocks::kTensor>(args, stream);
}

}  // namespace nibble::gpu
