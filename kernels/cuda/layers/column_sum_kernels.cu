// Limit: one read of the matrix, and of the partial sums: some megabytes of FP32.
#include "kernels/cuda/layers/column_sum_kernels.h"

#include <type_traits>

#include "kernels/cuda/layers/eight.cuh"

namespace nibble::gpu {
namespace {

constexpr int kSumCols = 32, kSumRows = 32;  // of a block of the second pass
constexpr int kSumLoads = 8;                 // of a thread, at once
constexpr int kColumnThreads = 64;           // of the first pass, eight columns each

// Thread (column, row) adds the rows row, row + 32, …, in that order; then halves are added to
// halves.
__global__ __launch_bounds__(kSumCols* kSumRows) void AddColumnSumsKernel(
    const float* __restrict__ partial, int64_t rows, int64_t cols, float* __restrict__ out) {
  __shared__ float sums[kSumRows][kSumCols];
  const int column = static_cast<int>(threadIdx.x) % kSumCols;
  const int first = static_cast<int>(threadIdx.x) / kSumCols;
  const int64_t c = static_cast<int64_t>(blockIdx.x) * kSumCols + column;
  float sum = 0;
  for (int64_t r = first; r < rows && c < cols; r += kSumLoads * kSumRows) {
    float x[kSumLoads];
#pragma unroll
    for (int i = 0; i < kSumLoads; ++i) {
      const int64_t row = r + i * kSumRows;
      x[i] = row < rows ? partial[row * cols + c] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kSumLoads; ++i) sum += x[i];
  }
  sums[first][column] = sum;
  __syncthreads();
#pragma unroll
  for (int half = kSumRows / 2; half > 0; half /= 2) {
    if (first < half) sums[first][column] += sums[first + half][column];
    __syncthreads();
  }
  if (first == 0 && c < cols) out[c] += sums[0][column];
}

template <class T, bool kWide>
__global__ __launch_bounds__(kColumnThreads) void ColumnSumsKernel(
    const __grid_constant__ ConstMatrix x, float* __restrict__ partial) {
  const int64_t c = kEight * (static_cast<int64_t>(blockIdx.y) * kColumnThreads +
                              static_cast<int64_t>(threadIdx.x));
  if (c >= x.cols) return;
  const int64_t blocks = gridDim.x, block = blockIdx.x;
  const int64_t end = FirstRow(block + 1, blocks, x.rows);
  float sums[kEight] = {};
#pragma unroll 4
  for (int64_t row = FirstRow(block, blocks, x.rows); row < end; ++row) {
    float v[kEight];
    LoadEight<kWide>(RowOf<T>(x, row) + c, x.cols - c, v);
#pragma unroll
    for (int i = 0; i < kEight; ++i) sums[i] += v[i];
  }
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    if (c + i < x.cols) partial[block * x.cols + c + i] = sums[i];
  }
}

}  // namespace

cudaError_t LaunchAddColumnSums(const float* partial, int64_t rows, int64_t cols, float* out,
                                cudaStream_t stream) {
  if (rows == 0 || cols == 0) return cudaSuccess;
  const int64_t blocks = (cols + kSumCols - 1) / kSumCols;
  return Launch(AddColumnSumsKernel, dim3(static_cast<unsigned>(blocks)), kSumCols * kSumRows, 0,
                stream, partial, rows, cols, out);
}

cudaError_t LaunchColumnSums(const ConstMatrix& x, float* partial, cudaStream_t stream) {
  if (x.rows == 0 || x.cols == 0) return cudaSuccess;
  const int64_t across = (x.cols + kEight * kColumnThreads - 1) / (kEight * kColumnThreads);
  const dim3 grid(static_cast<unsigned>(RowBlocksOf(x.rows, x.cols)),
                  static_cast<unsigned>(across));
  return WithType(x.dtype, [&](auto element) {
    return WithBool(InEights(x), [&](auto wide) {
      return Launch(ColumnSumsKernel<decltype(element), decltype(wide)::value>, grid,
                    kColumnThreads, 0, stream, x, partial);
    });
  });
}

}  // namespace nibble::gpu
