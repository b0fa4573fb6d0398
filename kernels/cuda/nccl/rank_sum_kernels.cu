// Limit of the sum: it reads 4 bytes per rank and element and writes 4. No contraction: the bits
// are the CPU's (worker/trainer/comm/collective.cc).
#include "kernels/cuda/nccl/rank_sum_kernels.h"

#include "kernels/cuda/device_access.cuh"
#include "kernels/formats/rank_order.h"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kAhead = 4;  // ranks whose elements are loaded before they are added

__device__ __forceinline__ const float* SliceOf(const RankSlices& slices, int r) {
  if (r == slices.rank) return slices.own;
  return slices.others + static_cast<int64_t>(r < slices.rank ? r : r - 1) * slices.stride;
}

__device__ __forceinline__ float Sum(float sum, float x) { return AddOfNextRank(sum, x); }
__device__ __forceinline__ float4 Sum(const float4& sum, const float4& x) {
  return {AddOfNextRank(sum.x, x.x), AddOfNextRank(sum.y, x.y), AddOfNextRank(sum.z, x.z),
          AddOfNextRank(sum.w, x.w)};
}

// A thread adds one element of V. count: of V.
template <class V>
__global__ __launch_bounds__(kThreads) void RankSumKernel(const __grid_constant__ RankSlices slices,
                                                          V* out, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const auto load = [&](int r) { return reinterpret_cast<const V*>(SliceOf(slices, r))[i]; };
  V sum = load(0);
  int r = 1;
  for (; r + kAhead <= slices.world; r += kAhead) {
    V x[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) x[a] = load(r + a);
#pragma unroll
    for (int a = 0; a < kAhead; ++a) sum = Sum(sum, x[a]);
  }
  for (; r < slices.world; ++r) sum = Sum(sum, load(r));
  out[i] = sum;
}

template <class V>
cudaError_t LaunchSum(const RankSlices& slices, float* out, int64_t count, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return Launch(RankSumKernel<V>, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, slices,
                reinterpret_cast<V*>(out), count);
}

template <class T>
__global__ __launch_bounds__(kThreads) void RankReduceKernel(const T* __restrict__ in,
                                                             T* __restrict__ out, int world,
                                                             int64_t count, bool sums) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  T result = in[i];
  for (int r = 1; r < world; ++r) {
    const T x = in[r * count + i];
    result = sums ? AddOfNextRank(result, x) : MaxWithNextRank(result, x);
  }
  out[i] = result;
}

template <class T>
cudaError_t LaunchReduce(const void* in, void* out, int world, int64_t count, Reduction reduction,
                         cudaStream_t stream) {
  const int64_t blocks = (count + kThreads - 1) / kThreads;
  return Launch(RankReduceKernel<T>, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream,
                static_cast<const T*>(in), static_cast<T*>(out), world, count,
                reduction == Reduction::kSum);
}

__global__ void MarkKernel(uint64_t* mark, uint64_t value) {
  *reinterpret_cast<volatile uint64_t*>(mark) = value;
}

bool InFours(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

cudaError_t LaunchRankSum(const RankSlices& slices, float* out, int64_t count,
                          cudaStream_t stream) {
  if (!InFours(slices.own) || !InFours(slices.others) || !InFours(out) || slices.stride % 4 != 0) {
    return LaunchSum<float>(slices, out, count, stream);
  }
  const int64_t whole = count / 4 * 4;
  const cudaError_t error = LaunchSum<float4>(slices, out, whole / 4, stream);
  if (error != cudaSuccess || whole == count) return error;
  RankSlices rest = slices;
  rest.own += whole;
  if (rest.world > 1) rest.others += whole;
  return LaunchSum<float>(rest, out + whole, count - whole, stream);
}

cudaError_t LaunchRankReduce(const void* in, void* out, int world, int64_t count,
                             ReduceElement element, Reduction reduction, cudaStream_t stream) {
  switch (element) {
    case ReduceElement::kFloat32:
      return LaunchReduce<float>(in, out, world, count, reduction, stream);
    case ReduceElement::kFloat64:
      return LaunchReduce<double>(in, out, world, count, reduction, stream);
    case ReduceElement::kInt64:
      return LaunchReduce<int64_t>(in, out, world, count, reduction, stream);
  }
  return cudaErrorInvalidValue;
}

cudaError_t LaunchMark(uint64_t* mark, uint64_t value, cudaStream_t stream) {
  return Launch(MarkKernel, dim3(1), 1, 0, stream, mark, value);
}

}  // namespace nibble::gpu
