// Limits: AdamW reads 16 bytes and writes 12 per element, 14 with a BF16 copy; the sum of squares
// reads 4. The arithmetic is the CPU's (kernels/cpu/layers/optimizer_kernels.cc), without
// contraction; the sum has its bits.
#include "kernels/cuda/layers/optimizer_kernels.h"

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
  float lr, eps, beta1, rest1, beta2, rest2, correction1, correction2;
};

__device__ __forceinline__ float Saturate(float x) {
  const float held =
      x > kLargestGradient ? kLargestGradient : (x < -kLargestGradient ? -kLargestGradient : x);
  return held + (x - x);
}

// As many runs as fit into the arguments of a launch.
constexpr int kMostRuns = 48;
struct UpdateTable {
  const StepOutcome* outcome;
  int count;
  uint32_t first_block[kMostRuns];  // of the grid
  AdamWRun run[kMostRuns];
};

// One thread per run: an amax begins at zero, unless nothing is updated.
__global__ void ClearAmaxKernel(const __grid_constant__ UpdateTable table) {
  if (table.outcome != nullptr && table.outcome->update == 0) return;
  const auto run = static_cast<int>(threadIdx.x);
  if (run < table.count && table.run[run].amax != nullptr) *table.run[run].amax = 0.0f;
}

// A thread's eight elements; returns the largest magnitude of the updated ones, without NaN.
template <bool kWide>
__device__ __forceinline__ uint32_t UpdateEight(const AdamWRun& run, const Rates& rates,
                                                float scale, int64_t first) {
  const int64_t count = run.n - first;
  const float decay = rates.lr * run.decay;
  float g[kEight], m[kEight], v[kEight], p[kEight];
  LoadEight<kWide>(run.grad + first, count, g);
  LoadEight<kWide>(static_cast<const float*>(run.m) + first, count, m);
  LoadEight<kWide>(static_cast<const float*>(run.v) + first, count, v);
  LoadEight<kWide>(static_cast<const float*>(run.param) + first, count, p);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    const float gradient = Saturate(g[i] * scale);
    m[i] = rates.beta1 * m[i] + rates.rest1 * gradient;
    v[i] = rates.beta2 * v[i] + rates.rest2 * (gradient * gradient);
    const float step = (m[i] / rates.correction1) / (sqrtf(v[i] / rates.correction2) + rates.eps);
    p[i] = (p[i] - decay * p[i]) - rates.lr * step;
    const uint32_t magnitude = BitsOf<float>(p[i]) & kMagnitudeBits;
    if (magnitude <= kInfinityBits) largest = MaxBits<uint32_t>(largest, magnitude);
  }
  StoreEight<kWide>(run.m + first, count, m);
  StoreEight<kWide>(run.v + first, count, v);
  StoreEight<kWide>(run.param + first, count, p);
  if (run.bf16 != nullptr) StoreEight<kWide>(run.bf16 + first, count, p);
  return largest;
}

__device__ __forceinline__ bool InSixteens(const AdamWRun& run) {
  return (reinterpret_cast<uintptr_t>(run.param) | reinterpret_cast<uintptr_t>(run.m) |
          reinterpret_cast<uintptr_t>(run.v) | reinterpret_cast<uintptr_t>(run.grad) |
          reinterpret_cast<uintptr_t>(run.bf16)) %
             16 ==
         0;
}

// A thread block takes adjacent elements of one run.
__global__ __launch_bounds__(kThreads) void AdamWKernel(const __grid_constant__ UpdateTable table,
                                                        const __grid_constant__ Rates rates) {
  const StepOutcome* const outcome = table.outcome;
  if (outcome != nullptr && outcome->update == 0) return;
  const float scale = outcome == nullptr ? 1.0f : outcome->scale;
  int index = 0;
  for (int end = table.count; end - index > 1;) {
    const int middle = (index + end) / 2;
    if (table.first_block[middle] <= blockIdx.x) {
      index = middle;
    } else {
      end = middle;
    }
  }
  const AdamWRun& run = table.run[index];
  const int64_t block = blockIdx.x - table.first_block[index];
  const int64_t first = kEight * (block * kThreads + static_cast<int64_t>(threadIdx.x));
  uint32_t largest = 0;
  if (first < run.n) {
    largest = InSixteens(run) && run.n - first >= kEight
                  ? UpdateEight<true>(run, rates, scale, first)
                  : UpdateEight<false>(run, rates, scale, first);
  }
  if (run.amax == nullptr) return;
  __shared__ uint32_t of_warps[kThreads / 32];
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (const uint32_t one : of_warps) largest = MaxBits<uint32_t>(largest, one);
  uint32_t* const amax = reinterpret_cast<uint32_t*>(run.amax);
  // Most blocks do not raise it.
  if (largest > __ldcg(amax)) atomicMax(amax, largest);
}

cudaError_t LaunchTable(const UpdateTable& table, uint32_t blocks, const Rates& rates,
                        cudaStream_t stream) {
  bool finds_amax = false;
  for (int i = 0; i < table.count; ++i) finds_amax |= table.run[i].amax != nullptr;
  if (finds_amax) {
    static_assert(kMostRuns <= 64);
    const cudaError_t error = Launch(ClearAmaxKernel, dim3(1), 64, 0, stream, table);
    if (error != cudaSuccess) return error;
  }
  return Launch(AdamWKernel, dim3(blocks), kThreads, 0, stream, table, rates);
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
  const Rates rates = {.lr = r.lr,
                       .eps = r.eps,
                       .beta1 = r.beta1,
                       .rest1 = 1 - r.beta1,
                       .beta2 = r.beta2,
                       .rest2 = 1 - r.beta2,
                       .correction1 = r.correction1,
                       .correction2 = r.correction2};
  UpdateTable table = {};
  table.outcome = r.outcome;
  uint32_t blocks = 0;
  for (const AdamWRun& run : r.runs) {
    if (run.n == 0 && run.amax == nullptr) continue;
    constexpr int64_t kPerBlock = kEight * kThreads;
    table.first_block[table.count] = blocks;
    table.run[table.count] = run;
    ++table.count;
    // An empty run has a block, which finds nothing.
    blocks += static_cast<uint32_t>(run.n == 0 ? 1 : (run.n + kPerBlock - 1) / kPerBlock);
    if (table.count < kMostRuns) continue;
    const cudaError_t error = LaunchTable(table, blocks, rates, stream);
    if (error != cudaSuccess) return error;
    table.count = 0;
    blocks = 0;
  }
  return table.count == 0 ? cudaSuccess : LaunchTable(table, blocks, rates, stream);
}

}  // namespace nibble::gpu
