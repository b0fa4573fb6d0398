// The order in which the roles of a block of attention's backward pass on Hopper hand over its
// buffers of dq: which barrier, and which of its phases, an arrival completes and a wait awaits.
// Shared by the kernel (attention_hopper_backward.cuh) and the simulation of its interleavings
// (attention_dq_buffers_test.cc).
//
// A block numbers the tiles of dq that pass through the buffers (`passed`): most are written by the
// consumers and added to global memory by a writer; the block's last tile of a query is fetched by
// a writer (`fetched` numbers these) and added by the consumers.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_DQ_BUFFERS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_DQ_BUFFERS_H_

#include <cstdint>

#ifdef __CUDACC__
#define NIBBLE_DQ_FUNCTION __host__ __device__ __forceinline__
#else
#define NIBBLE_DQ_FUNCTION inline
#endif

namespace nibble::gpu {

inline constexpr uint32_t kDqBuffers = 2;
inline constexpr uint32_t kWriters = 3;  // threads that add or fetch every kWriters-th tile

// A phase of one barrier of a kind: `barrier` counts from the first of the kind.
struct DqPhase {
  uint32_t barrier;
  uint32_t parity;
};

// kTurns: barriers per buffer, used in turn, that say that it is empty. A writer that fetches sums
// does not wait for the consumers first, so it may be two uses of its buffer ahead, and on one
// barrier the parity of the phase before last is that of the next: it takes two.
template <uint32_t kTurns>
struct DqHandover {
  static constexpr uint32_t kEmptyBarriers = kTurns * kDqBuffers;

  static NIBBLE_DQ_FUNCTION uint32_t Buffer(uint32_t passed) { return passed % kDqBuffers; }

  // The tile has left its buffer.
  static NIBBLE_DQ_FUNCTION DqPhase Empty(uint32_t passed) {
    return {passed % kEmptyBarriers, passed / kEmptyBarriers & 1u};
  }
  // What a tile waits for before it takes its buffer: that the tile before it there has left.
  static NIBBLE_DQ_FUNCTION DqPhase EmptyFor(uint32_t passed) {
    // That tile is number passed − kDqBuffers. `next` has its barrier, the phase after, and never
    // wraps below 0.
    const uint32_t next = passed - kDqBuffers + kEmptyBarriers;
    return {next % kEmptyBarriers, (next / kEmptyBarriers & 1u) ^ 1u};
  }
  // The consumers are done with the buffer: they have written their tile, or read the sums that
  // were fetched. A writer's own, since it may wait for a buffer that still holds the tile before.
  static NIBBLE_DQ_FUNCTION DqPhase Done(uint32_t passed) {
    return {passed % kWriters, passed / kWriters & 1u};
  }
  // The sums are in the buffer.
  static NIBBLE_DQ_FUNCTION DqPhase SumsFull(uint32_t fetched) {
    return {fetched % 2, fetched / 2 & 1u};
  }
};

using DqBuffers = DqHandover<2>;

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_DQ_BUFFERS_H_
