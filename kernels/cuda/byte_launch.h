// The instances of the fast kernel of one-byte elements, in files of their own.
//
// Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_BYTE_LAUNCH_H_
#define NIBBLE_KERNELS_CUDA_BYTE_LAUNCH_H_

#include <cuda_runtime.h>

#include "kernels/cuda/quantize_args.h"

namespace nibble::gpu {

// The elements that share a scale.
enum class ByteBlocks : uint8_t {
  kTensor,   // the whole tensor
  kLine32,   // 32 of a line
  kLine128,  // 128 of a line
  kSquare,   // 128 lines by 128
};

cudaError_t LaunchByteLine32(const QuantizeArgs& args, cudaStream_t stream);
cudaError_t LaunchByteLine128(const QuantizeArgs& args, cudaStream_t stream);
cudaError_t LaunchByteSquare(const QuantizeArgs& args, cudaStream_t stream);
cudaError_t LaunchByteTensor(const QuantizeArgs& args, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_BYTE_LAUNCH_H_
