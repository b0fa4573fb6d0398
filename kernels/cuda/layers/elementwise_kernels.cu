// Limit: one read and one write of each tensor. A block takes a row, or several short ones, a
// thread eight columns at a time.
#include "kernels/cuda/layers/elementwise_kernels.h"

#include <type_traits>

#include "kernels/cuda/layers/block_sum.cuh"
#include "kernels/cuda/layers/eight.cuh"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
// NaN stays NaN.
__device__ __forceinline__ float Relu(float x) { return x < 0 ? 0.0f : x; }

// As on the CPU (kernels/cpu/layers/elementwise_kernels.cc): x σ(2u) with u = √(2/π) (x + 0.044715
// x³).
constexpr float kGeluScale = 2 * 0.79788456080286536f;
constexpr float kGeluCubic = 0.044715f;

__device__ __forceinline__ float GeluExp(float x) {
  return expf(-kGeluScale * x * (1.0f + kGeluCubic * (x * x)));
}
__device__ __forceinline__ float GeluSlope(float x) {
  const float e = GeluExp(x);
  const float sigmoid = 1.0f / (1.0f + e);
  const float bend = e * sigmoid * sigmoid;
  const float inner = kGeluScale * (1.0f + 3 * kGeluCubic * (x * x));
  return sigmoid + (bend > 0 ? x * bend * inner : 0.0f);
}

// A thread's place: its row, and the first of its eight columns. Blocks cover `across` eights of
// each row.
struct Place {
  int64_t row, col;
};
__device__ __forceinline__ Place PlaceOf(int across) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  return {thread / across, kEight * (thread % across)};
}

template <bool kWide>
__device__ __forceinline__ void AddBiasAt(const float* bias, int64_t col, int64_t count,
                                          float (&x)[kEight]) {
  if (bias == nullptr) return;
  float b[kEight];
  LoadEight<kWide>(bias + col, count, b);
#pragma unroll
  for (int i = 0; i < kEight; ++i) x[i] += b[i];
}

template <class T, bool kWide, Activation kKind>
__global__ __launch_bounds__(kThreads) void ActivationKernel(
    const __grid_constant__ ActivationForward request, int across) {
  const Place at = PlaceOf(across);
  float amax = 0;
  if (at.row < request.out.rows) {
    const int64_t d = request.out.cols, count = d - at.col;
    const T* in = RowOf<T>(request.in, at.row) + at.col;
    float x[kEight], y[kEight];
    LoadEight<kWide>(in, count, x);
    AddBiasAt<kWide>(request.bias, at.col, count, x);
    if constexpr (kKind == Activation::kSwiglu) {
      float up[kEight];
      LoadEight<kWide>(in + d, count, up);
      AddBiasAt<kWide>(request.bias, d + at.col, count, up);
#pragma unroll
      for (int i = 0; i < kEight; ++i) y[i] = x[i] * Sigmoid(x[i]) * up[i];
    } else {
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        if constexpr (kKind == Activation::kSquaredRelu) {
          y[i] = Relu(x[i]) * Relu(x[i]);
        } else {
          y[i] = x[i] / (1.0f + GeluExp(x[i]));
        }
      }
    }
    StoreEight<kWide>(RowOf<T>(request.out, at.row) + at.col, count, y);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (kWide || i < count) amax = fmaxf(amax, fabsf(y[i]));
    }
  }
  if (request.amax != nullptr) RaiseAmax(request.amax, Rounded<T>(amax));
}

template <class T, bool kWide, Activation kKind>
__global__ __launch_bounds__(kThreads) void ActivationBackwardKernel(
    const __grid_constant__ ActivationBackward request, int across) {
  const Place at = PlaceOf(across);
  float amax = 0;
  if (at.row < request.dout.rows) {
    const int64_t d = request.dout.cols, count = d - at.col;
    const T* in = RowOf<T>(request.in, at.row) + at.col;
    T* din = RowOf<T>(request.din, at.row) + at.col;
    float x[kEight], dy[kEight], dx[kEight];
    LoadEight<kWide>(in, count, x);
    LoadEight<kWide>(RowOf<T>(request.dout, at.row) + at.col, count, dy);
    AddBiasAt<kWide>(request.bias, at.col, count, x);
    if constexpr (kKind == Activation::kSwiglu) {
      float up[kEight];
      LoadEight<kWide>(in + d, count, up);
      AddBiasAt<kWide>(request.bias, d + at.col, count, up);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const float sigmoid = Sigmoid(x[i]);
        const float silu = x[i] * sigmoid;
        dx[i] = dy[i] * up[i] * (sigmoid + silu * (1.0f - sigmoid));
        up[i] = dy[i] * silu;
        if (kWide || i < count) amax = fmaxf(amax, fabsf(up[i]));
      }
      StoreEight<kWide>(din + d, count, up);
    } else {
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        if constexpr (kKind == Activation::kSquaredRelu) {
          dx[i] = 2.0f * Relu(x[i]) * dy[i];
        } else {
          dx[i] = dy[i] * GeluSlope(x[i]);
        }
      }
    }
    StoreEight<kWide>(din, count, dx);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      if (kWide || i < count) amax = fmaxf(amax, fabsf(dx[i]));
    }
  }
  if (request.amax != nullptr) RaiseAmax(request.amax, Rounded<T>(amax));
}

template <class T, bool kWide>
__global__ __launch_bounds__(kThreads) void AddBiasKernel(
    const __grid_constant__ BiasForward request, int across) {
  const Place at = PlaceOf(across);
  if (at.row >= request.y.rows) return;
  const int64_t count = request.y.cols - at.col;
  T* const y = RowOf<T>(request.y, at.row) + at.col;
  float x[kEight];
  LoadEight<kWide>(static_cast<const T*>(y), count, x);
  AddBiasAt<kWide>(request.bias, at.col, count, x);
  StoreEight<kWide>(y, count, x);
}

// to = from, or to += from.
template <class From, class To, bool kWide, bool kAdd>
__global__ __launch_bounds__(kThreads) void MoveKernel(const __grid_constant__ ConstMatrix from,
                                                       const __grid_constant__ MutableMatrix to,
                                                       int across) {
  const Place at = PlaceOf(across);
  if (at.row >= to.rows) return;
  const int64_t count = to.cols - at.col;
  To* const out = RowOf<To>(to, at.row) + at.col;
  float x[kEight];
  LoadEight<kWide>(RowOf<From>(from, at.row) + at.col, count, x);
  if constexpr (kAdd) {
    float y[kEight];
    LoadEight<kWide>(static_cast<const To*>(out), count, y);
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[i] = y[i] + x[i];
  }
  StoreEight<kWide>(out, count, x);
}

int Across(int64_t cols) { return static_cast<int>((cols + kEight - 1) / kEight); }
dim3 GridOver(int64_t rows, int64_t cols) {
  return dim3(static_cast<unsigned>((rows * Across(cols) + kThreads - 1) / kThreads));
}

template <bool kAdd>
cudaError_t LaunchMove(const ConstMatrix& from, const MutableMatrix& to, cudaStream_t stream) {
  if (to.rows == 0 || to.cols == 0) return cudaSuccess;
  return WithType(from.dtype, [&](auto source) {
    return WithType(to.dtype, [&](auto element) {
      return WithBool(InEights(from) && InEights(to), [&](auto wide) {
        return Launch(MoveKernel<decltype(source), decltype(element), decltype(wide)::value, kAdd>,
                      GridOver(to.rows, to.cols), kThreads, 0, stream, from, to, Across(to.cols));
      });
    });
  });
}

// Calls use(std::integral_constant<Activation, kind>).
template <class Use>
cudaError_t WithKind(Activation kind, Use use) {
  switch (kind) {
    case Activation::kSquaredRelu:
      return use(std::integral_constant<Activation, Activation::kSquaredRelu>());
    case Activation::kGelu:
      return use(std::integral_constant<Activation, Activation::kGelu>());
    case Activation::kSwiglu:
      return use(std::integral_constant<Activation, Activation::kSwiglu>());
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t LaunchActivation(const ActivationForward& r, cudaStream_t stream) {
  if (r.out.rows == 0 || r.out.cols == 0) return cudaSuccess;
  const bool wide = InEights(r.in) && InEights(r.out) && Aligned(r.bias);
  return WithKind(r.kind, [&](auto kind) {
    return WithType(r.out.dtype, [&](auto element) {
      return WithBool(wide, [&](auto is_wide) {
        return Launch(
            ActivationKernel<decltype(element), decltype(is_wide)::value, decltype(kind)::value>,
            GridOver(r.out.rows, r.out.cols), kThreads, 0, stream, r, Across(r.out.cols));
      });
    });
  });
}

cudaError_t LaunchActivationBackward(const ActivationBackward& r, cudaStream_t stream) {
  if (r.dout.rows == 0 || r.dout.cols == 0) return cudaSuccess;
  const bool wide = InEights(r.in) && InEights(r.dout) && InEights(r.din) && Aligned(r.bias);
  return WithKind(r.kind, [&](auto kind) {
    return WithType(r.dout.dtype, [&](auto element) {
      return WithBool(wide, [&](auto is_wide) {
        return Launch(ActivationBackwardKernel<decltype(element), decltype(is_wide)::value,
                                               decltype(kind)::value>,
                      GridOver(r.dout.rows, r.dout.cols), kThreads, 0, stream, r,
                      Across(r.dout.cols));
      });
    });
  });
}

cudaError_t LaunchAddBias(const BiasForward& r, cudaStream_t stream) {
  if (r.y.rows == 0 || r.y.cols == 0) return cudaSuccess;
  return WithType(r.y.dtype, [&](auto element) {
    return WithBool(InEights(r.y) && Aligned(r.bias), [&](auto wide) {
      return Launch(AddBiasKernel<decltype(element), decltype(wide)::value>,
                    GridOver(r.y.rows, r.y.cols), kThreads, 0, stream, r, Across(r.y.cols));
    });
  });
}

cudaError_t LaunchCast(const Cast& r, cudaStream_t stream) {
  return LaunchMove<false>(r.from, r.to, stream);
}

cudaError_t LaunchAccumulate(const Accumulate& r, cudaStream_t stream) {
  return LaunchMove<true>(r.from, r.to, stream);
}

}  // namespace nibble::gpu
