// Launches of the norms' kernels; requests are valid (kernels/ops/norm_ops.h).
//
// Ownership: borrows. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_NORM_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_NORM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/ops/norm_ops.h"

namespace nibble::gpu {

// Columns of the widest row, or group of one, that the kernels take.
inline constexpr int64_t kWidestNorm = 32768;

// amax is raised, not set.
cudaError_t LaunchAddNorm(const AddNormForward& request, cudaStream_t stream);
cudaError_t LaunchGatedNorm(const GatedNormForward& request, cudaStream_t stream);
// partial: [RowBlocksOf(rows, d), d] FP32 per gradient, whose sums over rows are dweight and dbias.
cudaError_t LaunchNormBackward(const NormBackward& request, float* dweights, float* dbiases,
                               cudaStream_t stream);
// dweights: [GatedRowBlocksOf(rows, d, groups), d] FP32, whose sum over rows is dweight. By the
// shape alone, so that sums have the same bits everywhere.
int64_t GatedRowBlocksOf(int64_t rows, int64_t cols, int groups);
cudaError_t LaunchGatedNormBackward(const GatedNormBackward& request, float* dweights,
                                    cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_NORM_KERNELS_H_
