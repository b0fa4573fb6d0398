// Launches of the kernels of a step's numbers (kernels/ops/step_ops.h) and of initial values. Each
// of the former is one thread block, whose time is that of a few memory accesses.
//
// Ownership: borrow everything until the kernel has run. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_STEP_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_STEP_KERNELS_H_

#include <cuda_runtime.h>

#include "kernels/ops/elementwise_ops.h"
#include "kernels/ops/step_ops.h"

namespace nibble::gpu {

cudaError_t LaunchAddLosses(const AddLosses& request, cudaStream_t stream);
cudaError_t LaunchCountNonFinite(const CountNonFinite& request, cudaStream_t stream);
cudaError_t LaunchJudge(const Judge& request, cudaStream_t stream);
cudaError_t LaunchFillInitial(const FillInitial& request, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_STEP_KERNELS_H_
