// Launches of the reductions over ranks, in rank order (kernels/formats/rank_order.h), and of marks
// that the host reads.
//
// Ownership: borrow everything until the kernel has run. Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_NCCL_RANK_SUM_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_NCCL_RANK_SUM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/ops/rank_group.h"

namespace nibble::gpu {

// One slice per rank: this rank's, and those of the others in rank order.
struct RankSlices {
  const float* own = nullptr;     // [count]
  const float* others = nullptr;  // [world - 1, stride]
  int64_t stride = 0;             // at least count
  int rank = 0;
  int world = 1;
};

// out[i] = ((x0[i] + x1[i]) + x2[i]) + …; out: [count], apart from the slices or slices.own.
cudaError_t LaunchRankSum(const RankSlices& slices, float* out, int64_t count, cudaStream_t stream);

// in: [world, count], out: [count], apart. `count`: at least 1.
cudaError_t LaunchRankReduce(const void* in, void* out, int world, int64_t count,
                             ReduceElement element, Reduction reduction, cudaStream_t stream);

// *mark = value, in pinned memory, once the stream gets there.
cudaError_t LaunchMark(uint64_t* mark, uint64_t value, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_NCCL_RANK_SUM_KERNELS_H_
