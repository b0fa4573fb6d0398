#include "kernels/cuda/layers/step_kernels.h"

#include "kernels/cuda/device_access.cuh"
#include "kernels/formats/initial_values.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble::gpu {
namespace {

constexpr int kCountThreads = 256;
constexpr int kFillThreads = 256;

// Thread j takes partial sum j.
__global__ __launch_bounds__(kLossSums) void AddLossesKernel(
    const __grid_constant__ AddLosses request) {
  __shared__ double sums[kLossSums];
  __shared__ unsigned long long targets;
  const auto j = static_cast<int64_t>(threadIdx.x);
  if (j == 0) targets = 0;
  double sum = 0;
  unsigned long long counted = 0;
  for (int64_t i = j; i < request.n; i += kLossSums) {
    sum += static_cast<double>(request.x[i]);
    counted += request.targets[i] != -1 ? 1 : 0;
  }
  sums[j] = sum;
  __syncthreads();
  atomicAdd(&targets, counted);
  for (int64_t half = kLossSums / 2; half > 0; half /= 2) {
    if (j < half) sums[j] += sums[j + half];
    __syncthreads();
  }
  if (j == 0) {
    request.numbers->loss += sums[0];
    request.numbers->targets += static_cast<double>(targets);
  }
}

__global__ __launch_bounds__(kCountThreads) void CountNonFiniteKernel(
    const __grid_constant__ CountNonFinite request) {
  __shared__ unsigned long long all;
  if (threadIdx.x == 0) all = 0;
  __syncthreads();
  unsigned long long own = 0;
  for (int64_t i = threadIdx.x; i < request.count; i += kCountThreads) {
    const auto* head = reinterpret_cast<const QuantHead*>(static_cast<const char*>(request.heads) +
                                                          i * request.stride);
    own += head->non_finite;
    request.by_head[i] += head->non_finite;
  }
  if (own != 0) atomicAdd(&all, own);
  __syncthreads();
  if (threadIdx.x == 0) request.numbers->non_finite += all;
}

__global__ void JudgeKernel(const __grid_constant__ Judge request) {
  *request.outcome =
      JudgeStep(request.numbers, request.world, request.max_norm, request.loss_bound,
                request.norm_bound);
}

// A thread makes the four values of one draw.
template <Init kInit>
__global__ __launch_bounds__(kFillThreads) void FillInitialKernel(
    const __grid_constant__ FillInitial request) {
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kFillThreads + threadIdx.x;
  const int64_t first = 4 * block;
  if (first >= request.n) return;
  float four[4] = {1, 1, 1, 1};
  if constexpr (kInit == Init::kNormal || kInit == Init::kUniform || kInit == Init::kMambaDt ||
                kInit == Init::kMambaDecay) {
    const FourUniform draw = InitialDraw(request.random, static_cast<uint64_t>(block));
    if constexpr (kInit == Init::kNormal) InitialNormal(draw, request.scale, four);
    if constexpr (kInit == Init::kUniform) InitialUniform(draw, request.scale, four);
    if constexpr (kInit == Init::kMambaDt) InitialMambaDt(draw, four);
    if constexpr (kInit == Init::kMambaDecay) InitialMambaDecay(draw, four);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (first + i < request.n) request.out[first + i] = four[i];
  }
}

template <Init kInit>
cudaError_t LaunchFill(const FillInitial& request, cudaStream_t stream) {
  const int64_t blocks = (request.n + 4 * kFillThreads - 1) / (4 * kFillThreads);
  return Launch(FillInitialKernel<kInit>, dim3(static_cast<unsigned>(blocks)), kFillThreads, 0,
                stream, request);
}

}  // namespace

cudaError_t LaunchAddLosses(const AddLosses& request, cudaStream_t stream) {
  return Launch(AddLossesKernel, dim3(1), kLossSums, 0, stream, request);
}

cudaError_t LaunchCountNonFinite(const CountNonFinite& request, cudaStream_t stream) {
  return Launch(CountNonFiniteKernel, dim3(1), kCountThreads, 0, stream, request);
}

cudaError_t LaunchJudge(const Judge& request, cudaStream_t stream) {
  return Launch(JudgeKernel, dim3(1), 1, 0, stream, request);
}

cudaError_t LaunchFillInitial(const FillInitial& request, cudaStream_t stream) {
  if (request.n == 0) return cudaSuccess;
  switch (request.init) {
    case Init::kZeros:
      return cudaMemsetAsync(request.out, 0, static_cast<size_t>(request.n) * sizeof(float),
                             stream);
    case Init::kOnes:
      return LaunchFill<Init::kOnes>(request, stream);
    case Init::kNormal:
      return LaunchFill<Init::kNormal>(request, stream);
    case Init::kUniform:
      return LaunchFill<Init::kUniform>(request, stream);
    case Init::kMambaDt:
      return LaunchFill<Init::kMambaDt>(request, stream);
    case Init::kMambaDecay:
      return LaunchFill<Init::kMambaDecay>(request, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace nibble::gpu
