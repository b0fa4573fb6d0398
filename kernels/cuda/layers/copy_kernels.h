// Launches of copies of many parts at once; requests are valid (kernels/ops/elementwise_ops.h).
//
// Ownership: borrows. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_COPY_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_COPY_KERNELS_H_

#include <cuda_runtime.h>

#include "kernels/ops/elementwise_ops.h"

namespace nibble::gpu {

// One launch for each 64 parts.
cudaError_t LaunchCopyParts(const CopyParts& request, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_COPY_KERNELS_H_
