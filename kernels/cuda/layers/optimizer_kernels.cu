// Limits: AdamW reads 16 bytes and writes 12 per element, the sum of squares reads 4. The
// arithmetic is the CPU's (kernels/cpu/layers/optimizer_kernels.cc), without contraction; the sum
// has its bits.
#include "kernels/cuda/layers/optimizer_kernels.h"

#include <type_traits>

#include "kernels/cuda/layers/eight.cuh"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 16;  // partial sums of a block of the CPU's

// A thread keeps one of the 16 partial sums of a block of 65,536 elements, in FP64: elements lane,
// lane + 16, …. Then halves are added to halves, the lower first. 8 loads in flight per thread.
__global__ __launch_bounds__(kThreads) void SquaresKernel(const float* __restrict__ x, int64_t n,
                                                          double* __restrict__ partial) {
  __shared__ double sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + thread / kLanes;
  const int64_t begin = block * kSquaresBlock;
  const int64_t end = begin + kSquaresBlock < n ? begin + kSquaresBlock : n;
  double sum = 0;
  int64_t i = begin + lane;
  constexpr int kAhead = 8;
  for (; i + (kAhead - 1) * kLanes < end; i += kAhead * kLanes) {
    float values[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) values[a] = x[i + a * kLanes];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      sum += static_cast<double>(values[a]) * static_cast<double>(values[a]);
    }
  }
  for (; i < end; i += kLanes) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  sums[thread] = sum;
  __syncthreads();
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2) {
    if (lane < width) sums[thread] += sums[thread + width];
    __syncthreads();
  }
  if (lane == 0 && begin < n) partial[block] = sums[thread];
}

// In the order of the blocks: the sums are read by all threads and added by one.
__global__ __launch_bounds__(kThreads) void AddPartialsKernel(const double* __restrict__ partial,
                                                              int64_t count, double* sum,
                                                              bool add) {
  __shared__ double values[kThreads];
  double total = add ? *sum : 0.0;
  for (int64_t first = 0; first < count; first += kThreads) {
    const int64_t i = first + threadIdx.x;
    if (i < count) values[threadIdx.x] = partial[i];
    __syncthreads();
    if (threadIdx.x == 0) {
      const int64_t some = count - first < kThreads ? count - first : kThreads;
      for (int64_t j = 0; j < some; ++j) total += values[j];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) *sum = total;
}

struct Rates {
  float lr, decay, eps, beta1, rest1, beta2, rest2, correction1, correction2;
};

__device__ __forceinline__ float Saturate(float x) {
  const float held =
      x > kLargestGradient ? kLargestGradient : (x < -kLargestGradient ? -kLargestGradient : x);
  return held + (x - x);
}

template <bool kWide>
__global__ __launch_bounds__(kThreads) void AdamWKernel(const __grid_constant__ AdamW request,
                                                        const __grid_constant__ Rates rates) {
  const StepOutcome* const outcome = request.outcome;
  if (outcome != nullptr && outcome->update == 0) return;
  const float scale = outcome == nullptr ? 1.0f : outcome->scale;
  const int64_t first =
      kEight * (static_cast<int64_t>(blockIdx.x) * kThreads + static_cast<int64_t>(threadIdx.x));
  if (first >= request.n) return;
  const int64_t count = request.n - first;
  const auto run = [&](auto wide) {
    constexpr bool kAll = decltype(wide)::value;
    float g[kEight], m[kEight], v[kEight], p[kEight];
    LoadEight<kAll>(request.grad + first, count, g);
    LoadEight<kAll>(static_cast<const float*>(request.m) + first, count, m);
    LoadEight<kAll>(static_cast<const float*>(request.v) + first, count, v);
    LoadEight<kAll>(static_cast<const float*>(request.param) + first, count, p);
#pragma unroll
    for (int i = 0; i < kEight; ++i) {
      const float gradient = Saturate(g[i] * scale);
      m[i] = rates.beta1 * m[i] + rates.rest1 * gradient;
      v[i] = rates.beta2 * v[i] + rates.rest2 * (gradient * gradient);
      const float step = (m[i] / rates.correction1) / (sqrtf(v[i] / rates.correction2) + rates.eps);
      p[i] = (p[i] - rates.decay * p[i]) - rates.lr * step;
    }
    StoreEight<kAll>(request.m + first, count, m);
    StoreEight<kAll>(request.v + first, count, v);
    StoreEight<kAll>(request.param + first, count, p);
  };
  if (kWide && count >= kEight) {
    run(std::true_type());
  } else {
    run(std::false_type());
  }
}

}  // namespace

cudaError_t LaunchSumOfSquares(const SumOfSquares& request, double* partial, cudaStream_t stream) {
  const int64_t count = SquaresBlocks(request.n);
  if (count > 0) {
    constexpr int64_t kAtOnce = kThreads / kLanes;
    const auto blocks = static_cast<unsigned>((count + kAtOnce - 1) / kAtOnce);
    const cudaError_t error =
        Launch(SquaresKernel, dim3(blocks), kThreads, 0, stream, request.x, request.n, partial);
    if (error != cudaSuccess) return error;
  }
  return Launch(AddPartialsKernel, dim3(1), kThreads, 0, stream,
                static_cast<const double*>(partial), count, request.sum, request.add);
}

cudaError_t LaunchAdamW(const AdamW& r, cudaStream_t stream) {
  if (r.n == 0) return cudaSuccess;
  const Rates rates = {.lr = r.lr,
                       .decay = r.lr * r.decay,
                       .eps = r.eps,
                       .beta1 = r.beta1,
                       .rest1 = 1 - r.beta1,
                       .beta2 = r.beta2,
                       .rest2 = 1 - r.beta2,
                       .correction1 = r.correction1,
                       .correction2 = r.correction2};
  const bool wide = Aligned(r.param) && Aligned(r.m) && Aligned(r.v) && Aligned(r.grad);
  const int64_t blocks = (r.n + kEight * kThreads - 1) / (kEight * kThreads);
  return WithBool(wide, [&](auto is_wide) {
    return Launch(AdamWKernel<decltype(is_wide)::value>, dim3(static_cast<unsigned>(blocks)),
                  kThreads, 0, stream, r, rates);
  });
}

}  // namespace nibble::gpu
