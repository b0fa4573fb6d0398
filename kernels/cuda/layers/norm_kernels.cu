// Limits: one read and one write of each tensor; the backward passes add FP32 partial sums of the
// parameters' gradients, some megabytes of them.
//
// A block takes a row at a time and keeps it in registers, eight columns of a thread side by side.
// Backward, a block takes a range of rows and sums the gradients of the parameters over it in
// registers.
#include "kernels/cuda/layers/norm_kernels.h"

#include <type_traits>

#include "kernels/cuda/layers/block_sum.cuh"
#include "kernels/cuda/layers/column_sum_kernels.h"
#include "kernels/cuda/layers/eight.cuh"
#include "kernels/cuda/layers/norm_row.cuh"

namespace nibble::gpu {
namespace {

template <class T, bool kWide, int kChunks>
__global__ __launch_bounds__(kMostThreads<kChunks>) void AddNormKernel(
    const __grid_constant__ AddNormForward request) {
  __shared__ SumSpace spaces[2];
  const int64_t row = blockIdx.x, d = request.x.cols;
  float v[kChunks][kEight];
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
#pragma unroll
    for (int i = 0; i < kEight; ++i) v[k][i] = 0;
    if (c >= d) continue;
    LoadEight<kWide>(RowOf<T>(request.x, row) + c, d - c, v[k]);
    if (request.y.data == nullptr) continue;
    float y[kEight];
    LoadEight<kWide>(RowOf<T>(request.y, row) + c, d - c, y);
#pragma unroll
    for (int i = 0; i < kEight; ++i) v[k][i] = Rounded<T>(v[k][i] + y[i]);
    StoreEight<kWide>(RowOf<T>(request.sum, row) + c, d - c, v[k]);
  }
  if (request.out.data == nullptr) return;
  const bool centered = request.norm.centered;
  float mean = 0;
  if (centered) {
    float total = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
#pragma unroll
      for (int i = 0; i < kEight; ++i) total += v[k][i];
    }
    mean = BlockSum(total, spaces[0]) / static_cast<float>(d);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      v[k][i] = (kWide ? c < d : c + i < d) ? v[k][i] - mean : 0.0f;
      squares += v[k][i] * v[k][i];
    }
  }
  const float rstd = ReciprocalDeviation(BlockSum(squares, spaces[1]), d, request.norm.eps);
  if (threadIdx.x == 0) {
    request.rstd[row] = rstd;
    if (centered) request.mean[row] = mean;
  }
  float amax = 0;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
    if (c >= d) continue;
    float w[kEight], b[kEight] = {};
    LoadEight<kWide>(request.norm.weight + c, d - c, w);
    if (centered) LoadEight<kWide>(request.norm.bias + c, d - c, b);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      v[k][i] = v[k][i] * rstd * w[i] + b[i];
      amax = fmaxf(amax, fabsf(v[k][i]));
    }
    StoreEight<kWide>(RowOf<T>(request.out, row) + c, d - c, v[k]);
  }
  if (request.amax != nullptr) RaiseAmax(request.amax, Rounded<T>(amax));
}

// dx = residual + rstd (g − mean(g) − x̂ mean(g x̂)) with g = dout ⊙ weight.
template <class T, bool kWide, int kChunks, bool kCentered>
__global__ __launch_bounds__(kMostThreads<kChunks>) void NormBackwardKernel(
    const __grid_constant__ NormBackward request, float* __restrict__ dweights,
    float* __restrict__ dbiases) {
  __shared__ SumSpace spaces[4];
  const int64_t d = request.x.cols, rows = request.x.rows;
  float w[kChunks][kEight], dweight[kChunks][kEight] = {}, dbias[kChunks][kEight] = {};
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
#pragma unroll
    for (int i = 0; i < kEight; ++i) w[k][i] = 0;
    if (c < d) LoadEight<kWide>(request.norm.weight + c, d - c, w[k]);
  }
  const int64_t begin = FirstRow(blockIdx.x, gridDim.x, rows);
  const int64_t end = FirstRow(blockIdx.x + 1, gridDim.x, rows);
  // A row is loaded while the one before is computed, and stays as it is in memory between the two
  // passes over it.
  struct Row {
    RawEight<T, kWide> x[kChunks], dy[kChunks], residual[kChunks];
    float rstd = 0, mean = 0;
  } next;
  const auto load = [&](int64_t row) {
    next.rstd = request.rstd[row];
    if constexpr (kCentered) next.mean = request.mean[row];
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int64_t c = ColumnOf(k);
      if (c >= d) continue;
      next.x[k].Load(RowOf<T>(request.x, row) + c, d - c);
      next.dy[k].Load(RowOf<T>(request.dout, row) + c, d - c);
      if (request.residual.data == nullptr) continue;
      next.residual[k].Load(RowOf<T>(request.residual, row) + c, d - c);
    }
  };
  if (begin < end) load(begin);
  for (int64_t row = begin; row < end; ++row) {
    const Row now = next;
    if (row + 1 < end) load(row + 1);
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int64_t c = ColumnOf(k);
      if (c >= d) continue;
      float x[kEight], dy[kEight];
      now.x[k].Get(x);
      now.dy[k].Get(dy);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const float normed = kWide || c + i < d ? (x[i] - now.mean) * now.rstd : 0.0f;
        dweight[k][i] += dy[i] * normed;
        if constexpr (kCentered) {
          dbias[k][i] += dy[i];
          sum_g += dy[i] * w[k][i];
        }
        sum_gx += dy[i] * w[k][i] * normed;
      }
    }
    const int turn = static_cast<int>(row & 1);
    const float mean_gx = BlockSum(sum_gx, spaces[turn]) / static_cast<float>(d);
    const float mean_g =
        kCentered ? BlockSum(sum_g, spaces[2 + turn]) / static_cast<float>(d) : 0.0f;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int64_t c = ColumnOf(k);
      if (c >= d) continue;
      float x[kEight], dy[kEight], dx[kEight];
      now.x[k].Get(x);
      now.dy[k].Get(dy);
      now.residual[k].Get(dx);  // zeros without one
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const float normed = (x[i] - now.mean) * now.rstd;
        dx[i] += now.rstd * (dy[i] * w[k][i] - mean_g - normed * mean_gx);
      }
      StoreEight<kWide>(RowOf<T>(request.dx, row) + c, d - c, dx);
    }
  }
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (c + i >= d) continue;
      dweights[blockIdx.x * d + c + i] = dweight[k][i];
      if constexpr (kCentered) dbiases[blockIdx.x * d + c + i] = dbias[k][i];
    }
  }
}

dim3 Grid(int64_t blocks) { return dim3(static_cast<unsigned>(blocks)); }

}  // namespace

cudaError_t LaunchAddNorm(const AddNormForward& r, cudaStream_t stream) {
  if (r.x.rows == 0 || r.x.cols == 0) return cudaSuccess;
  const bool wide = InEights(r.x) && InEights(r.y) && InEights(r.sum) && InEights(r.out) &&
                    Aligned(r.norm.weight) && Aligned(r.norm.bias);
  return WithChunks(r.x.cols, [&](auto chunks, unsigned threads) {
    return WithElements(r.x.dtype, wide, [&](auto element, auto is_wide) {
      return Launch(
          AddNormKernel<decltype(element), decltype(is_wide)::value, decltype(chunks)::value>,
          Grid(r.x.rows), threads, 0, stream, r);
    });
  });
}

cudaError_t LaunchNormBackward(const NormBackward& r, float* dweights, float* dbiases,
                               cudaStream_t stream) {
  if (r.x.rows == 0 || r.x.cols == 0) return cudaSuccess;
  const bool wide = InEights(r.x) && InEights(r.dout) && InEights(r.residual) && InEights(r.dx) &&
                    Aligned(r.norm.weight);
  return WithChunks(r.x.cols, [&](auto chunks, unsigned threads) {
    return WithElements(r.x.dtype, wide, [&](auto element, auto is_wide) {
      return WithBool(r.norm.centered, [&](auto centered) {
        return Launch(NormBackwardKernel<decltype(element), decltype(is_wide)::value,
                                         decltype(chunks)::value, decltype(centered)::value>,
                      Grid(RowBlocksOf(r.x.rows, r.x.cols)), threads, 0, stream, r, dweights,
                      dbiases);
      });
    });
  });
}

}  // namespace nibble::gpu
