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

// Blocks of rows in the first pass, whose threads take eight columns each: as many as run at once
// on 132 multiprocessors with 1024 threads each, which their registers allow. By the shape alone,
// so that sums have the same bits everywhere.
inline int64_t RowBlocksOf(int64_t rows, int64_t cols) {
  const int64_t threads = (cols / 8 + 31) / 32 * 32;
  const int64_t blocks = 132 * (threads == 0 ? 16 : threads < 1024 ? 1024 / threads : 1);
  const int64_t most = rows < 2048 ? rows : 2048;
  return blocks < most ? blocks : most;
}
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
// partial[b, c] = Σ of the column over the rows of block b, of RowBlocksOf(x.rows, x.cols) blocks.
cudaError_t LaunchColumnSums(const ConstMatrix& x, float* partial, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_COLUMN_SUM_KERNELS_H_
