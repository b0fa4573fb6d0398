// Sums of the columns of partial sums: the second pass of gradients of vectors, such as biases and
// norm weights, whose first pass leaves one partial sum per block of rows.
//
// Ownership: borrows. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_COLUMN_SUM_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_COLUMN_SUM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/tensor/matrix.h"

namespace nibble::gpu {

// Blocks of rows in the first pass: enough to fill any card, and by the shape alone, so that sums
// have the same bits everywhere.
inline constexpr int64_t kRowBlocks = 1024;
inline int64_t RowBlocksOf(int64_t rows) { return rows < kRowBlocks ? rows : kRowBlocks; }
// Rows [FirstRow(b), FirstRow(b + 1)) are those of block b.
#if defined(__CUDACC__)
__host__ __device__
#endif
    inline int64_t
    FirstRow(int64_t block, int64_t blocks, int64_t rows) {
  return block * rows / blocks;
}

// out[c] += Σ_r partial[r, c]. partial: [rows, cols], contiguous; out: [cols].
cudaError_t LaunchAddColumnSums(const float* partial, int64_t rows, int64_t cols, float* out,
                                cudaStream_t stream);
// partial[b, c] = Σ of the column over the rows of block b, of RowBlocksOf(x.rows) blocks.
cudaError_t LaunchColumnSums(const ConstMatrix& x, float* partial, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_COLUMN_SUM_KERNELS_H_
