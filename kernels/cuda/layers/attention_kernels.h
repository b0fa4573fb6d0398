// Launches of the attention kernels. All matrices are BF16, their rows begin at multiples of 16
// bytes; all sums have an order that the shape determines.
//
// Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_KERNELS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_KERNELS_H_

#include <cuda_runtime.h>

#include <type_traits>

#include "kernels/cuda/layers/attention_args.h"

namespace nibble::gpu {

template <int... kDims>
struct HeadDims {
  static constexpr bool Contains(int head_dim) { return ((head_dim == kDims) || ...); }
  // launch(std::integral_constant<int, head_dim>()); cudaErrorInvalidValue if it is none of them.
  template <class Launch>
  static cudaError_t Call(int head_dim, Launch launch) {
    cudaError_t error = cudaErrorInvalidValue;
    (void)((head_dim == kDims && (error = launch(std::integral_constant<int, kDims>()), true)) ||
           ...);
    return error;
  }
};

// The kernels of warp_mma.cuh, on every target.
using MmaHeadDims = HeadDims<16, 32, 64, 80, 96, 128>;
constexpr bool MmaTakesHeadDim(int head_dim) { return MmaHeadDims::Contains(head_dim); }
// pieces.count == 0: whole sequences. Otherwise appends to the caches first, then attends over
// them.
cudaError_t LaunchMmaForward(const ForwardArgs& args, const CachedPieces& pieces,
                             cudaStream_t stream);
// After LaunchBackwardRows. Leaves dq_sums and turns alone.
cudaError_t LaunchMmaBackward(const BackwardArgs& args, cudaStream_t stream);

// Writes lse2, dots and last_query, and zeros to turns (if not null).
cudaError_t LaunchBackwardRows(const BackwardArgs& args, cudaStream_t stream);

// The warpgroup kernels, of Hopper. `processors`: the number of blocks that run at once; results do
// not depend on it. `warpgroups`: 64 queries each per block, 2 or 3 with head_dim 64; 0: by length.
constexpr bool HopperTakesHeadDim(int head_dim) { return head_dim == 64 || head_dim == 128; }
cudaError_t LaunchHopperForward(const ForwardArgs& args, int processors, int warpgroups,
                                cudaStream_t stream);
// After LaunchBackwardRows.
cudaError_t LaunchHopperBackward(const BackwardArgs& args, int processors, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_KERNELS_H_
