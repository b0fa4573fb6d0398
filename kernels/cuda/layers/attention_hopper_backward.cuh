// Common to the roles of a block of attention's backward pass on Hopper
// (attention_hopper_backward.cu): the layout of its shared memory, with the barriers that hand its
// parts over, and its jobs, which are blocks of keys.
//
// Ownership: a block's shared memory. Thread-safety: as device code; a part is written by one role
// and read by another, in the order that its two barriers give.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_HOPPER_BACKWARD_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_HOPPER_BACKWARD_CUH_

#include "kernels/cuda/layers/attention_dq_buffers.h"
#include "kernels/cuda/layers/attention_hopper.cuh"

namespace nibble::gpu {

inline constexpr int kKeys = 128;     // of a block
inline constexpr int kConsumers = 2;  // warpgroups
inline constexpr int kConsumerWarps = 4 * kConsumers;
inline constexpr int kStages = 2;  // tiles of queries in shared memory
// The tile of dq of one consumer: [64, 64] FP32 as 8 pieces of 4 per thread, a piece of all threads
// after the other.
inline constexpr int kDqFloats = 64 * 64;
inline constexpr int kDqPieces = kDqFloats / 4 / kWarpgroup;

template <int kDim>
struct BackwardTiles {
  static constexpr int kQueries = kDim == 128 ? 64 : 128;
  using Keys = PanelTile<kKeys, kDim>;
  using Queries = PanelTile<kQueries, kDim>;
  using Scores = PanelTile<kKeys, kQueries>;      // dsᵀ: [keys, queries]
  static constexpr int kRowBytes = kQueries * 4;  // of lse2 and of dots

  static constexpr int kKey = 0;
  static constexpr int kValue = kKey + Keys::kBytes;
  static constexpr int kQuery = kValue + Keys::kBytes;
  static constexpr int kDout = kQuery + kStages * Queries::kBytes;
  static constexpr int kScores = kDout + kStages * Queries::kBytes;
  static constexpr int kDq = kScores + 2 * Scores::kBytes;
  static constexpr int kDqBytes = kConsumers * kDqFloats * 4;
  static constexpr int kLse2 = kDq + static_cast<int>(kDqBuffers) * kDqBytes;
  static constexpr int kDots = kLse2 + kStages * kRowBytes;
  static constexpr int kSlots = kDots + kStages * kRowBytes;
  static constexpr int kBarriers = kSlots + 32;
  static constexpr int kBytes = kBarriers + 8 * 25;
  static_assert(kBytes <= 227 << 10);
  static_assert(kConsumers * kDqFloats == kQueries * kDim);
};

// Shared memory of a block. Steps (pairs of query tile and key block) and jobs (key blocks) are
// numbered from the start of the kernel.
template <int kDim>
struct BackwardMemory {
  using Tiles = BackwardTiles<kDim>;
  uint32_t base;

  __device__ __forceinline__ uint32_t Key() const { return base + Tiles::kKey; }
  __device__ __forceinline__ uint32_t Value() const { return base + Tiles::kValue; }
  __device__ __forceinline__ uint32_t Query(uint32_t step) const {
    return base + Tiles::kQuery + step % 2 * Tiles::Queries::kBytes;
  }
  __device__ __forceinline__ uint32_t Dout(uint32_t step) const {
    return base + Tiles::kDout + step % 2 * Tiles::Queries::kBytes;
  }
  __device__ __forceinline__ uint32_t Scores(uint32_t step) const {
    return base + Tiles::kScores + step % 2 * Tiles::Scores::kBytes;
  }
  // The buffer of the `passed`-th tile of dq.
  __device__ __forceinline__ uint32_t Dq(uint32_t passed) const {
    return base + Tiles::kDq + DqBuffers::Buffer(passed) * Tiles::kDqBytes;
  }
  __device__ __forceinline__ uint32_t Lse2(uint32_t step) const {
    return base + Tiles::kLse2 + step % 2 * Tiles::kRowBytes;
  }
  __device__ __forceinline__ uint32_t Dots(uint32_t step) const {
    return base + Tiles::kDots + step % 2 * Tiles::kRowBytes;
  }
  __device__ __forceinline__ uint32_t Slot(uint32_t job) const {
    return base + Tiles::kSlots + job % 2 * 16;
  }
  __device__ __forceinline__ uint32_t Barrier(uint32_t index) const {
    return base + Tiles::kBarriers + 8 * index;
  }
  __device__ __forceinline__ uint32_t KeyFull() const { return Barrier(0); }
  __device__ __forceinline__ uint32_t KeyEmpty() const { return Barrier(1); }
  __device__ __forceinline__ uint32_t ValueFull() const { return Barrier(2); }
  __device__ __forceinline__ uint32_t ValueEmpty() const { return Barrier(3); }
  // The `passed`-th tile of dq has left its buffer.
  __device__ __forceinline__ uint32_t DqEmpty(uint32_t passed) const {
    return Barrier(4 + DqBuffers::Empty(passed).barrier);
  }
  // Waits until the buffer of the `passed`-th tile is empty: until the tile before it in that
  // buffer has left.
  __device__ __forceinline__ void WaitForDqEmpty(uint32_t passed) const {
    const DqPhase phase = DqBuffers::EmptyFor(passed);
    WaitForPhase(Barrier(4 + phase.barrier), phase.parity);
  }
  __device__ __forceinline__ uint32_t QueryFull(uint32_t step) const {
    return Barrier(8 + step % 2);
  }
  __device__ __forceinline__ uint32_t QueryEmpty(uint32_t step) const {
    return Barrier(10 + step % 2);
  }
  __device__ __forceinline__ uint32_t DoutFull(uint32_t step) const {
    return Barrier(12 + step % 2);
  }
  __device__ __forceinline__ uint32_t DoutEmpty(uint32_t step) const {
    return Barrier(14 + step % 2);
  }
  __device__ __forceinline__ uint32_t SlotFull(uint32_t job) const { return Barrier(16 + job % 2); }
  __device__ __forceinline__ uint32_t SlotEmpty(uint32_t job) const {
    return Barrier(18 + job % 2);
  }
  // The consumers are done with the buffer of the `passed`-th tile.
  __device__ __forceinline__ uint32_t DqDone(uint32_t passed) const {
    return Barrier(20 + DqBuffers::Done(passed).barrier);
  }
  __device__ __forceinline__ void WaitForDqDone(uint32_t passed) const {
    WaitForPhase(DqDone(passed), DqBuffers::Done(passed).parity);
  }
  // Barrier of the `fetched`-th tile of sums that a writer fetches for the consumers.
  __device__ __forceinline__ uint32_t SumsFull(uint32_t fetched) const {
    return Barrier(23 + DqBuffers::SumsFull(fetched).barrier);
  }
  __device__ __forceinline__ void WaitForSums(uint32_t fetched) const {
    WaitForPhase(SumsFull(fetched), DqBuffers::SumsFull(fetched).parity);
  }
  // Parity of the phase in which stage `step` or slot `job` is full.
  static __device__ __forceinline__ uint32_t Phase(uint32_t step) { return step / 2 & 1u; }
};

// A job as its slot describes it: sequence · kv_heads + key head (-1: there is no more work), block
// of keys, last query tile, last query that attends to all keys of the block so far.
struct Job {
  int pair, block, last_tile, all_see;
};
template <int kDim>
__device__ __forceinline__ Job ReadJob(BackwardMemory<kDim> memory, uint32_t job, int lane) {
  WaitForPhase(memory.SlotFull(job), memory.Phase(job));
  const int4 x = LoadSharedInts(memory.Slot(job));
  SyncWarp();
  if (lane == 0) Arrive(memory.SlotEmpty(job));
  return {x.x, x.y, x.z, x.w};
}

// The geometry of a job.
template <int kDim>
struct JobPlace {
  static constexpr int kQueries = BackwardTiles<kDim>::kQueries;
  const BackwardArgs& args;
  int sequence, kv_head, group, block, first_tile, last_tile;

  __device__ __forceinline__ JobPlace(const BackwardArgs& args, const Job& job)
      : args(args),
        sequence(job.pair / args.dims.kv_heads),
        kv_head(job.pair % args.dims.kv_heads),
        group(args.dims.heads / args.dims.kv_heads),
        block(job.block),
        first_tile(job.block * (kKeys / kQueries)),
        last_tile(job.last_tile) {}

  __device__ __forceinline__ int head(int member) const { return kv_head * group + member; }
  __device__ __forceinline__ int key_column() const { return (args.dims.heads + kv_head) * kDim; }
  __device__ __forceinline__ int value_column() const {
    return key_column() + args.dims.kv_heads * kDim;
  }
  __device__ __forceinline__ int64_t first_token() const {
    return int64_t{sequence} * args.dims.length;
  }
  // Row of lse2, dots and dq_sums of the tile's first query; there are less than 2^31.
  __device__ __forceinline__ int row(int member, int tile) const {
    return (sequence * args.dims.heads + head(member)) * static_cast<int>(args.dims.padded()) +
           tile * kQueries;
  }
  __device__ __forceinline__ int* turns(int member, int tile) const {
    return args.turns + row(member, 0) / 64 + tile;
  }
  // The number of key blocks that are added to a query tile before this one.
  __device__ __forceinline__ int turn(int tile) const {
    if (args.doc_begin == nullptr) return block;
    return block - args.doc_begin[first_token() + int64_t{tile} * kQueries] / kKeys;
  }
  // Tiles on the diagonal, whose last contribution is this block's.
  __device__ __forceinline__ bool IsLast(int tile) const {
    return tile < first_tile + kKeys / kQueries;
  }
};

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_ATTENTION_HOPPER_BACKWARD_CUH_
