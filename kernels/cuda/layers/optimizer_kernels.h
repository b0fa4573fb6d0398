// Launches of the optimizer's kernels; requests are valid
// (kernels/ops/optimizer_ops.h).
//
// Ownership: borrows. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_OPTIMIZER_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_OPTIMIZER_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/ops/optimizer_ops.h"

namespace nibble::gpu {

// Elements per partial sum.
inline constexpr int64_t kSquaresBlock = 65536;
inline int64_t SquaresBlocks(int64_t n) { return (n + kSquaresBlock - 1) / kSquaresBlock; }
// partial: [SquaresBlocks(n)]
cudaError_t LaunchSumOfSquares(const SumOfSquares& request, double* partial, cudaStream_t stream);
cudaError_t LaunchAdamW(const AdamW& request, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_OPTIMIZER_KERNELS_H_
