// The naive kernels: one thread per block of 16, directly from the formulas (exact_block.h), for
// every combination of NVFP4's options. They are the oracle on the card, handle what the tile
// kernels do not support, and compute the statistics.
#include "kernels/cuda/block_sums.cuh"
#include "kernels/cuda/copy_store.cuh"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/exact_block.h"
#include "kernels/cuda/prepare.cuh"
#include "kernels/cuda/quantize_kernels.h"
#include "kernels/cuda/source_load.cuh"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;
// Of a multiprocessor at least: for Blackwell the compiler would spill registers with two.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int kNaiveBlocks = 1;
#else
constexpr int kNaiveBlocks = 2;
#endif

// A copy's blocks in an order that keeps neighbouring threads on neighbouring source elements.
template <bool kColumn>
struct BlockOrder {
  int64_t lines;
  int64_t groups;

  __host__ __device__ explicit BlockOrder(const Source& x)
      : lines(kColumn ? x.cols : x.rows), groups((kColumn ? x.rows : x.cols) / 16) {}
  __host__ __device__ int64_t count() const { return lines * groups; }
  __device__ int64_t Line(int64_t index) const { return kColumn ? index % lines : index / groups; }
  __device__ int64_t Group(int64_t index) const { return kColumn ? index / lines : index % groups; }
};

// The block's values before rounding.
template <bool kF32, bool kColumn>
__device__ void TakeBlock(const Source& x, const CopyArgs& copy, int64_t line, int64_t group,
                          bool aligned, float (&v)[16]) {
  LoadBlock<kF32, kColumn>(x, line, group, aligned, v);
  if (copy.hadamard) HadamardExactly(v, copy.sign_bits);
}

// Amax of the 16×16 block that contains `line`.
template <bool kF32, bool kColumn>
__device__ uint32_t SquareAmaxBits(const Source& x, int64_t line, int64_t group, bool aligned) {
  ExactAmax amax;
#pragma unroll 1
  for (int64_t i = line / 16 * 16; i < line / 16 * 16 + 16; ++i) {
    float v[16];
    LoadBlock<kF32, kColumn>(x, i, group, aligned, v);
#pragma unroll
    for (int k = 0; k < 16; ++k) amax.Add(v[k]);
  }
  return amax.bits;
}

template <bool kF32, bool kColumn>
__global__ __launch_bounds__(kThreads) void NaiveAmax(const __grid_constant__ Source x,
                                                      const __grid_constant__ CopyArgs copy) {
  const BlockOrder<kColumn> order(x);
  const bool aligned = IsAligned(x);
  ExactAmax amax;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < order.count();
       i += int64_t{gridDim.x} * kThreads) {
    float v[16];
    TakeBlock<kF32, kColumn>(x, copy, order.Line(i), order.Group(i), aligned, v);
#pragma unroll
    for (int k = 0; k < 16; ++k) amax.Add(v[k]);
  }
  const uint32_t bits = __reduce_max_sync(0xffffffffu, amax.bits);
  if (threadIdx.x % 32 == 0) atomicMax(&copy.figures->amax_bits, bits);
  if (amax.non_finite != 0) atomicAdd(&copy.figures->non_finite, amax.non_finite);
}

template <bool kF32, bool kColumn, bool kStatistics>
__global__ __launch_bounds__(kThreads, kNaiveBlocks) void NaiveQuantize(
    const __grid_constant__ Source x, const __grid_constant__ CopyArgs copy) {
  const BlockOrder<kColumn> order(x);
  const bool aligned = IsAligned(x);
  const Nvfp4::TensorScale tensor = copy.figures->tensor;
  const StatNorm norm = copy.figures->norm;
  StatSums sums;
  uint32_t non_finite = 0;
#pragma unroll 1
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < order.count();
       i += int64_t{gridDim.x} * kThreads) {
    const int64_t line = order.Line(i);
    const int64_t group = order.Group(i);
    float v[16];
    TakeBlock<kF32, kColumn>(x, copy, line, group, aligned, v);
    ExactAmax amax;
#pragma unroll
    for (int k = 0; k < 16; ++k) amax.Add(v[k]);
    non_finite += amax.non_finite;
    if (copy.square) amax.bits = SquareAmaxBits<kF32, kColumn>(x, line, group, aligned);
    PhiloxWords<uint32_t> random = {};
    if (copy.stochastic) {
      random = RandomBits(copy, line, group);
    }
    const ExactBlock block = EncodeExactly(v, amax.bits, tensor, copy.stochastic, random);
    StoreBlock(copy, line, group, block.codes, block.scale_code);
    if constexpr (kStatistics) AddStatistics(v, block, norm, sums);
  }
  if constexpr (kStatistics) AddAtomically<kThreads>(copy.head->stats, sums);
  if (!copy.amax_pass && non_finite != 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&copy.head->non_finite), non_finite);
  }
}

__global__ __launch_bounds__(kPrepareThreads) void Prepare(
    const __grid_constant__ QuantizeArgs args) {
  PrepareCopies(args);
}

template <bool kColumn>
unsigned GridFor(const Source& x) {
  const int64_t blocks = (BlockOrder<kColumn>(x).count() + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks);
}

template <bool kF32, bool kColumn>
cudaError_t LaunchOf(const Source& x, const CopyArgs& copy, bool statistics, cudaStream_t stream) {
  const auto kernel =
      statistics ? NaiveQuantize<kF32, kColumn, true> : NaiveQuantize<kF32, kColumn, false>;
  return Launch(kernel, dim3(GridFor<kColumn>(x)), kThreads, 0, stream, x, copy);
}

}  // namespace

cudaError_t LaunchNaiveAmax(const QuantizeArgs& args, int copy, cudaStream_t stream) {
  const Source& x = args.x;
  const CopyArgs& of = args.copy[copy];
  if (of.column) {
    const auto kernel = x.f32 ? NaiveAmax<true, true> : NaiveAmax<false, true>;
    return Launch(kernel, dim3(GridFor<true>(x)), kThreads, 0, stream, x, of);
  }
  const auto kernel = x.f32 ? NaiveAmax<true, false> : NaiveAmax<false, false>;
  return Launch(kernel, dim3(GridFor<false>(x)), kThreads, 0, stream, x, of);
}

cudaError_t LaunchPrepare(const QuantizeArgs& args, cudaStream_t stream) {
  return Launch(Prepare, dim3(1), kPrepareThreads, 0, stream, args);
}

cudaError_t LaunchNaive(const QuantizeArgs& args, int copy, bool statistics, cudaStream_t stream) {
  const CopyArgs& of = args.copy[copy];
  if (of.column) {
    return args.x.f32 ? LaunchOf<true, true>(args.x, of, statistics, stream)
                      : LaunchOf<false, true>(args.x, of, statistics, stream);
  }
  return args.x.f32 ? LaunchOf<true, false>(args.x, of, statistics, stream)
                    : LaunchOf<false, false>(args.x, of, statistics, stream);
}

}  // namespace nibble::gpu
