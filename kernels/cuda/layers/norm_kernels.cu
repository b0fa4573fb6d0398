// Limits: one read and one write of each tensor; the backward passes add FP32 partial sums of the
// parameters' gradients, some megabytes of them.
//
// A block takes a row, or a group of columns of one, at a time and keeps it in registers, eight
// columns of a thread side by side. Backward, a block takes a range of rows and sums the gradients
// of the parameters over it in registers.
#include "kernels/cuda/layers/norm_kernels.h"

#include <cfloat>
#include <type_traits>

#include "kernels/cuda/layers/block_sum.cuh"
#include "kernels/cuda/layers/column_sum_kernels.h"
#include "kernels/cuda/layers/eight.cuh"

namespace nibble::gpu {
namespace {

// How many eights of a row a thread keeps, and the most threads of a block.
template <int kChunks>
inline constexpr int kMostThreads = kChunks == 1 ? 512 : 1024;

// A mean that FP32 cannot represent gives NaN, as on the CPU.
__device__ __forceinline__ float ReciprocalDeviation(float sum_of_squares, int64_t n, float eps) {
  const float mean = sum_of_squares / static_cast<float>(n);
  if (!(mean <= FLT_MAX)) return FromBits<float>(0x7fc00000u);
  return 1.0f / sqrtf(mean + eps);
}

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// Where a thread's eight number `chunk` begins in a row.
__device__ __forceinline__ int64_t ColumnOf(int chunk) {
  return kEight * (static_cast<int64_t>(chunk) * blockDim.x + threadIdx.x);
}

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
      v[k][i] = c + i < d ? v[k][i] - mean : 0.0f;
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
  // A row is loaded while the sums of the one before are formed.
  RawEight<T, kWide> next_x[kChunks], next_dy[kChunks];
  const auto load = [&](int64_t row) {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int64_t c = ColumnOf(k);
      if (c >= d || row >= end) continue;
      next_x[k].Load(RowOf<T>(request.x, row) + c, d - c);
      next_dy[k].Load(RowOf<T>(request.dout, row) + c, d - c);
    }
  };
  load(begin);
  for (int64_t row = begin; row < end; ++row) {
    const float rstd = request.rstd[row];
    const float mean = kCentered ? request.mean[row] : 0.0f;
    float normed[kChunks][kEight], g[kChunks][kEight];
    RawEight<T, kWide> residual[kChunks];
    float sum_g = 0, sum_gx = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int64_t c = ColumnOf(k);
      if (c >= d) {
#pragma unroll
        for (int i = 0; i < kEight; ++i) normed[k][i] = g[k][i] = 0;
        continue;
      }
      if (request.residual.data != nullptr) {
        residual[k].Load(RowOf<T>(request.residual, row) + c, d - c);
      }
      float dy[kEight];
      next_x[k].Get(normed[k]);
      next_dy[k].Get(dy);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        normed[k][i] = c + i < d ? (normed[k][i] - mean) * rstd : 0.0f;
        g[k][i] = dy[i] * w[k][i];
        dweight[k][i] += dy[i] * normed[k][i];
        if constexpr (kCentered) {
          dbias[k][i] += dy[i];
          sum_g += g[k][i];
        }
        sum_gx += g[k][i] * normed[k][i];
      }
    }
    load(row + 1);
    const int turn = static_cast<int>(row & 1);
    const float mean_gx = BlockSum(sum_gx, spaces[turn]) / static_cast<float>(d);
    const float mean_g =
        kCentered ? BlockSum(sum_g, spaces[2 + turn]) / static_cast<float>(d) : 0.0f;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int64_t c = ColumnOf(k);
      if (c >= d) continue;
      float dx[kEight] = {};
      if (request.residual.data != nullptr) residual[k].Get(dx);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        dx[i] += rstd * (g[k][i] - mean_g - normed[k][i] * mean_gx);
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

template <class T, bool kWide, int kChunks>
__global__ __launch_bounds__(kMostThreads<kChunks>) void GatedNormKernel(
    const __grid_constant__ GatedNormForward request) {
  __shared__ SumSpace space;
  const int64_t row = blockIdx.x, width = request.y.cols / request.groups;
  const int64_t group = blockIdx.y, first = group * width;
  float v[kChunks][kEight];
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
#pragma unroll
    for (int i = 0; i < kEight; ++i) v[k][i] = 0;
    if (c >= width) continue;
    float z[kEight];
    LoadEight<kWide>(RowOf<T>(request.y, row) + first + c, width - c, v[k]);
    LoadEight<kWide>(RowOf<T>(request.z, row) + first + c, width - c, z);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      v[k][i] *= z[i] * Sigmoid(z[i]);
      squares += v[k][i] * v[k][i];
    }
  }
  const float rstd = ReciprocalDeviation(BlockSum(squares, space), width, request.eps);
  if (threadIdx.x == 0) request.rstd[row * request.groups + group] = rstd;
  float amax = 0;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
    if (c >= width) continue;
    float w[kEight];
    LoadEight<kWide>(request.weight + first + c, width - c, w);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      v[k][i] = v[k][i] * rstd * w[i];
      amax = fmaxf(amax, fabsf(v[k][i]));
    }
    StoreEight<kWide>(RowOf<T>(request.out, row) + first + c, width - c, v[k]);
  }
  if (request.amax != nullptr) RaiseAmax(request.amax, Rounded<T>(amax));
}

// With h = y SiLU(z) and ĥ = h rstd: dh = rstd (g − ĥ mean(g ĥ)), dy = dh SiLU(z), dz = dh y SiLU'.
template <class T, bool kWide, int kChunks>
__global__ __launch_bounds__(kMostThreads<kChunks>) void GatedNormBackwardKernel(
    const __grid_constant__ GatedNormBackward request, float* __restrict__ dweights) {
  __shared__ SumSpace spaces[2];
  const int64_t d = request.y.cols, rows = request.y.rows, width = d / request.groups;
  const int64_t group = blockIdx.y, first = group * width;
  float w[kChunks][kEight] = {}, dweight[kChunks][kEight] = {};
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
    if (c < width) LoadEight<kWide>(request.weight + first + c, width - c, w[k]);
  }
  const int64_t begin = FirstRow(blockIdx.x, gridDim.x, rows);
  const int64_t end = FirstRow(blockIdx.x + 1, gridDim.x, rows);
  // A row is loaded while the sum of the one before is formed.
  RawEight<T, kWide> next_y[kChunks], next_z[kChunks], next_dy[kChunks];
  const auto load = [&](int64_t row) {
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int64_t c = ColumnOf(k);
      if (c >= width || row >= end) continue;
      next_y[k].Load(RowOf<T>(request.y, row) + first + c, width - c);
      next_z[k].Load(RowOf<T>(request.z, row) + first + c, width - c);
      next_dy[k].Load(RowOf<T>(request.dout, row) + first + c, width - c);
    }
  };
  load(begin);
  for (int64_t row = begin; row < end; ++row) {
    const float rstd = request.rstd[row * request.groups + group];
    float y[kChunks][kEight], silu[kChunks][kEight], slope[kChunks][kEight], g[kChunks][kEight];
    float sum_gh = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      float z[kEight], dy[kEight];
      next_y[k].Get(y[k]);
      next_z[k].Get(z);
      next_dy[k].Get(dy);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const float sigmoid = Sigmoid(z[i]);
        silu[k][i] = z[i] * sigmoid;
        slope[k][i] = sigmoid + silu[k][i] * (1.0f - sigmoid);
        const float normed = y[k][i] * silu[k][i] * rstd;
        g[k][i] = dy[i] * w[k][i];
        dweight[k][i] += dy[i] * normed;
        sum_gh += g[k][i] * normed;
      }
    }
    load(row + 1);
    const float mean_gh = BlockSum(sum_gh, spaces[row & 1]) / static_cast<float>(width);
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int64_t c = ColumnOf(k);
      if (c >= width) continue;
      float dy[kEight], dz[kEight];
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const float dh = rstd * (g[k][i] - y[k][i] * silu[k][i] * rstd * mean_gh);
        dy[i] = dh * silu[k][i];
        dz[i] = dh * y[k][i] * slope[k][i];
      }
      StoreEight<kWide>(RowOf<T>(request.dy, row) + first + c, width - c, dy);
      StoreEight<kWide>(RowOf<T>(request.dz, row) + first + c, width - c, dz);
    }
  }
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int64_t c = ColumnOf(k);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (c + i < width) dweights[blockIdx.x * d + first + c + i] = dweight[k][i];
    }
  }
}

// Calls use(std::integral_constant<int, chunks>, threads) for a row of `width`.
template <class Use>
cudaError_t WithChunks(int64_t width, Use use) {
  const int64_t eights = (width + kEight - 1) / kEight;
  const auto threads = [&](int chunks) {
    const int64_t each = (eights + chunks - 1) / chunks;
    return static_cast<unsigned>((each + kWarp - 1) / kWarp * kWarp);
  };
  if (eights <= kMostThreads<1>) return use(std::integral_constant<int, 1>(), threads(1));
  if (eights <= 2 * kMostThreads<2>) return use(std::integral_constant<int, 2>(), threads(2));
  if (eights <= 4 * kMostThreads<4>) return use(std::integral_constant<int, 4>(), threads(4));
  return cudaErrorInvalidValue;
}

// Calls use(T(), std::bool_constant<wide>): FP32, which only checks use, is loaded one by one.
template <class Use>
cudaError_t WithElements(DType dtype, bool wide, Use use) {
  if (dtype == DType::kF32) return use(float(), std::false_type());
  return wide ? use(uint16_t(), std::true_type()) : use(uint16_t(), std::false_type());
}

dim3 Grid(int64_t x, int64_t y = 1) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y));
}

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

cudaError_t LaunchGatedNorm(const GatedNormForward& r, cudaStream_t stream) {
  if (r.y.rows == 0 || r.y.cols == 0) return cudaSuccess;
  const int64_t width = r.y.cols / r.groups;
  const bool wide =
      InEights(r.y) && InEights(r.z) && InEights(r.out) && Aligned(r.weight) && width % kEight == 0;
  return WithChunks(width, [&](auto chunks, unsigned threads) {
    return WithElements(r.y.dtype, wide, [&](auto element, auto is_wide) {
      return Launch(
          GatedNormKernel<decltype(element), decltype(is_wide)::value, decltype(chunks)::value>,
          Grid(r.y.rows, r.groups), threads, 0, stream, r);
    });
  });
}

cudaError_t LaunchGatedNormBackward(const GatedNormBackward& r, float* dweights,
                                    cudaStream_t stream) {
  if (r.y.rows == 0 || r.y.cols == 0) return cudaSuccess;
  const int64_t width = r.y.cols / r.groups;
  const bool wide = InEights(r.y) && InEights(r.z) && InEights(r.dout) && InEights(r.dy) &&
                    InEights(r.dz) && Aligned(r.weight) && width % kEight == 0;
  return WithChunks(width, [&](auto chunks, unsigned threads) {
    return WithElements(r.y.dtype, wide, [&](auto element, auto is_wide) {
      return Launch(GatedNormBackwardKernel<decltype(element), decltype(is_wide)::value,
                                            decltype(chunks)::value>,
                    Grid(RowBlocksOf(r.y.rows, r.y.cols), r.groups), threads, 0, stream, r,
                    dweights);
    });
  });
}

}  // namespace nibble::gpu
