// Launches of the kernels that read each element once; requests are valid
// (kernels/ops/elementwise_ops.h).
//
// Ownership: borrows. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ELEMENTWISE_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ELEMENTWISE_KERNELS_H_

#include <cuda_runtime.h>

#include "kernels/ops/elementwise_ops.h"

namespace nibble::gpu {

// amax is raised, not set.
cudaError_t LaunchActivation(const ActivationForward& request, cudaStream_t stream);
cudaError_t LaunchActivationBackward(const ActivationBackward& request, cudaStream_t stream);
cudaError_t LaunchAddBias(const BiasForward& request, cudaStream_t stream);
cudaError_t LaunchCast(const Cast& request, cudaStream_t stream);
cudaError_t LaunchAccumulate(const Accumulate& request, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ELEMENTWISE_KERNELS_H_
