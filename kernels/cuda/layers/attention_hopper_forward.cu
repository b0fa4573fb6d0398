// Attention's forward pass on Hopper.
//
// A persistent block per multiprocessor: one producer thread copies tiles of q, k and v straight
// out of qkv, and two or three consumer warpgroups own 64 query rows of one head each. A consumer
// multiplies q·k of the next 128 keys while it multiplies probabilities and values of these and, in
// between, computes the softmax of the next ones; named barriers pass the tensor cores from one
// warpgroup to the next, so that the softmax of one runs during the matmuls of another. Keys are
// walked from the diagonal back to the first document of the tile's queries. The producer takes
// tiles from a counter, longest first, and copies the next tile's operands during the end of this
// one.
//
// Limits: 4 · length² / 2 · head_dim FLOPs per head on the tensor cores, and length² / 2
// exponentials at 16 per clock and multiprocessor, which take as long as the matmuls with
// head_dim 64.
#include <algorithm>

#include "kernels/cuda/layers/attention_hopper.cuh"
#include "kernels/cuda/layers/attention_kernels.h"

namespace nibble::gpu {
namespace {

constexpr int kKeys = 128;

template <int kDim, int kConsumers>
struct ForwardTiles {
  using Query = PanelTile<64, kDim>;  // of one consumer
  using Keys = PanelTile<kKeys, kDim>;
  static constexpr int kQueries = 64 * kConsumers;
  static constexpr int kStages = kDim == 128 ? 2 : 4;
  static constexpr int kThreads = kWarpgroup * (kConsumers + 1);
  // Registers pass from one warpgroup to the others. A warpgroup that requests more than the block
  // was launched with waits forever.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kConsumers == 2 ? 40 : 32;
  static constexpr int kConsumerRegisters = kConsumers == 2 ? 232 : 160;
  static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <=
                (kConsumers + 1) * kLaunchRegisters);

  // Offsets in shared memory from a multiple of 1024 bytes.
  static constexpr int kQuery = 0;
  static constexpr int kKey = kQuery + kConsumers * Query::kBytes;
  static constexpr int kValue = kKey + kStages * Keys::kBytes;
  static constexpr int kSlots = kValue + kStages * Keys::kBytes;  // two int4
  static constexpr int kBarriers = kSlots + 32;
  static constexpr int kBytes = kBarriers + 8 * (6 + 4 * kStages) + 1024;
};

// Shared memory of a block. Uses of a ring of stages are numbered from the start of the kernel.
template <class Tiles>
struct ForwardMemory {
  static constexpr uint32_t kStages = Tiles::kStages;
  uint32_t base;

  __device__ __forceinline__ uint32_t Query(int consumer) const {
    return base + static_cast<uint32_t>(Tiles::kQuery + consumer * Tiles::Query::kBytes);
  }
  __device__ __forceinline__ uint32_t Key(uint32_t use) const {
    return base + Tiles::kKey + use % kStages * static_cast<uint32_t>(Tiles::Keys::kBytes);
  }
  __device__ __forceinline__ uint32_t Value(uint32_t use) const {
    return base + Tiles::kValue + use % kStages * static_cast<uint32_t>(Tiles::Keys::kBytes);
  }
  __device__ __forceinline__ uint32_t Slot(uint32_t tile) const {
    return base + Tiles::kSlots + tile % 2 * 16;
  }
  __device__ __forceinline__ uint32_t Barrier(uint32_t index) const {
    return base + Tiles::kBarriers + 8 * index;
  }
  __device__ __forceinline__ uint32_t QueryFull() const { return Barrier(0); }
  __device__ __forceinline__ uint32_t QueryEmpty() const { return Barrier(1); }
  __device__ __forceinline__ uint32_t SlotFull(uint32_t tile) const {
    return Barrier(2 + tile % 2);
  }
  __device__ __forceinline__ uint32_t SlotEmpty(uint32_t tile) const {
    return Barrier(4 + tile % 2);
  }
  __device__ __forceinline__ uint32_t KeyFull(uint32_t use) const {
    return Barrier(6 + use % kStages);
  }
  __device__ __forceinline__ uint32_t KeyEmpty(uint32_t use) const {
    return Barrier(6 + kStages + use % kStages);
  }
  __device__ __forceinline__ uint32_t ValueFull(uint32_t use) const {
    return Barrier(6 + 2 * kStages + use % kStages);
  }
  __device__ __forceinline__ uint32_t ValueEmpty(uint32_t use) const {
    return Barrier(6 + 3 * kStages + use % kStages);
  }
  // Parity of the phase in which use `use` is full, or slot `tile`.
  static __device__ __forceinline__ uint32_t Phase(uint32_t use) { return use / kStages & 1u; }
  static __device__ __forceinline__ uint32_t SlotPhase(uint32_t tile) { return tile / 2 & 1u; }
};

// The last block of keys that one of `queries` queries from first_query on attends to.
[[maybe_unused]] __device__ __forceinline__ int LastBlock(const AttentionDims& dims,
                                                          int first_query, int queries) {
  const int64_t end = int64_t{first_query} + queries;
  return static_cast<int>((end < dims.length ? end - 1 : dims.length - 1) / kKeys);
}

// A slot describes a tile to the consumers: its head, counted over all sequences (-1: there is no
// more work), first query, first block of keys, and the largest doc_begin of its queries.
template <class Tiles>
__device__ __forceinline__ void Produce(const CUtensorMap* map, const ForwardArgs& args,
                                        const WorkPlan& plan, ForwardMemory<Tiles> memory) {
  const AttentionDims& dims = args.dims;
  const int dim = dims.head_dim, group = dims.heads / dims.kv_heads;
  int index = NextWork(args.schedule);
  uint32_t use = 0;
  for (uint32_t tile = 0;; ++tile) {
    WaitForPhase(memory.SlotEmpty(tile), memory.SlotPhase(tile) ^ 1u);
    if (index >= plan.count()) {
      StoreSharedInts(memory.Slot(tile), make_int4(-1, 0, 0, 0));
      Arrive(memory.SlotFull(tile));
      break;
    }
    const int next = NextWork(args.schedule);
    const Work work = WorkAt(plan, index);
    const int sequence = work.head / dims.heads, head = work.head % dims.heads;
    const int first_query = (plan.pieces - 1 - work.piece) * Tiles::kQueries;
    int first_begin = 0, last_begin = 0;
    if (args.doc_begin != nullptr) {
      const int32_t* begin = args.doc_begin + int64_t{sequence} * dims.length;
      const int64_t end = int64_t{first_query} + Tiles::kQueries;
      first_begin = begin[first_query];
      last_begin = begin[(end < dims.length ? end : dims.length) - 1];
    }
    const int first_block = first_begin / kKeys;
    StoreSharedInts(memory.Slot(tile), make_int4(work.head, first_query, first_block, last_begin));
    Arrive(memory.SlotFull(tile));

    const int key_column = (dims.heads + head / group) * dim;
    const int value_column = key_column + dims.kv_heads * dim;
    const auto copy_values = [&](int block, uint32_t value_use) {
      WaitForPhase(memory.ValueEmpty(value_use), memory.Phase(value_use) ^ 1u);
      ArriveAndExpect(memory.ValueFull(value_use), Tiles::Keys::kBytes);
      Tiles::Keys::Copy(memory.Value(value_use), map, value_column, block * kKeys, sequence,
                        memory.ValueFull(value_use));
    };
    const int last_block = LastBlock(dims, first_query, Tiles::kQueries);
#pragma unroll 1
    for (int block = last_block; block >= first_block; --block, ++use) {
      WaitForPhase(memory.KeyEmpty(use), memory.Phase(use) ^ 1u);
      ArriveAndExpect(memory.KeyFull(use), Tiles::Keys::kBytes);
      Tiles::Keys::Copy(memory.Key(use), map, key_column, block * kKeys, sequence,
                        memory.KeyFull(use));
      if (block == last_block) {
        WaitForPhase(memory.QueryEmpty(), (tile & 1u) ^ 1u);
        constexpr int kConsumers = Tiles::kQueries / 64;
        ArriveAndExpect(memory.QueryFull(), kConsumers * Tiles::Query::kBytes);
#pragma unroll
        for (int i = 0; i < kConsumers; ++i) {
          Tiles::Query::Copy(memory.Query(i), map, head * dim, first_query + 64 * i, sequence,
                             memory.QueryFull());
        }
      } else {
        copy_values(block + 1, use - 1);
      }
    }
    copy_values(first_block, use - 1);
    index = next;
  }
  FinishWork(args.schedule);
}

// The order in which consumers issue matmuls. Barrier 1 + i: consumer i may issue.
template <int kConsumers>
struct Token {
  int consumer;
  // Once, before the first Take.
  __device__ __forceinline__ void Start() const {
    if (consumer == kConsumers - 1) Pass();
  }
  __device__ __forceinline__ void Take() const { WaitAtBarrier(1 + consumer, 2 * kWarpgroup); }
  __device__ __forceinline__ void Pass() const {
    ArriveAtBarrier(1 + (consumer + 1) % kConsumers, 2 * kWarpgroup);
  }
};

template <int kDim, int kConsumers>
__device__ __forceinline__ void Consume(const ForwardArgs& args,
                                        ForwardMemory<ForwardTiles<kDim, kConsumers>> memory,
                                        int consumer) {
  using Tiles = ForwardTiles<kDim, kConsumers>;
  using Keys = typename Tiles::Keys;
  const AttentionDims& dims = args.dims;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32, quad = lane % 4;
  const int own_row = consumer * 64 + thread / 32 * 16 + lane / 4;  // and that + 8
  const float factor = dims.scale * kLog2E;
  const Token<kConsumers> token = {consumer};
  token.Start();
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) Arrive(barrier);
  };
  float amax = 0.0f;
  uint32_t base = 0;  // uses of the rings before this tile

  for (uint32_t tile = 0;; ++tile) {
    WaitForPhase(memory.SlotFull(tile), memory.SlotPhase(tile));
    const int4 work = LoadSharedInts(memory.Slot(tile));
    SyncWarp();
    release(memory.SlotEmpty(tile));
    if (work.x < 0) break;
    const int sequence = work.x / dims.heads, head = work.x % dims.heads;
    const int first_query = work.y, first_block = work.z, last_begin = work.w;
    const int last_block = LastBlock(dims, first_query, Tiles::kQueries);
    const int blocks = last_block - first_block + 1;
    const int first_row = first_query + consumer * 64;  // of this warpgroup
    // Blocks that lie wholly behind this warpgroup's queries; all of them behind the sequence's
    // end.
    const int skipped =
        first_row < dims.length ? last_block - LastBlock(dims, first_row, 64) : blocks;

    const int64_t first_token = int64_t{sequence} * dims.length;
    int begin[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_query + own_row + 8 * half, last = dims.length - 1;
      begin[half] =
          args.doc_begin == nullptr ? 0 : args.doc_begin[first_token + (row < last ? row : last)];
    }
    const auto mask = [&](float(&s)[kKeys / 2], int block) {
      const int first_key = block * kKeys;
      if (first_key + kKeys - 1 <= first_row && first_key >= last_begin) return;
      VisibleColumns visible;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        visible.first[half] = begin[half] - first_key - 2 * quad;
        visible.last[half] = first_query + own_row + 8 * half - first_key - 2 * quad;
      }
      MaskScores(s, visible);
    };

#pragma unroll 1
    for (int i = 0; i < skipped; ++i) {
      const uint32_t use = base + static_cast<uint32_t>(i);
      WaitForPhase(memory.KeyFull(use), memory.Phase(use));
      release(memory.KeyEmpty(use));
      WaitForPhase(memory.ValueFull(use), memory.Phase(use));
      release(memory.ValueEmpty(use));
      if (i + 1 < blocks) {
        token.Take();
        token.Pass();
      }
    }
    WaitForPhase(memory.QueryFull(), tile & 1u);
    if (skipped < blocks) {
      const uint32_t query = memory.Query(consumer);
      float s[kKeys / 2], o[kDim / 2];
      uint32_t p[kKeys / 4];
      float shrink[2];
      SoftmaxRows rows;
#pragma unroll
      for (int i = 0; i < kDim / 2; ++i) o[i] = 0.0f;

      uint32_t use = base + static_cast<uint32_t>(skipped);
      WaitForPhase(memory.KeyFull(use), memory.Phase(use));
      WarpgroupFence();
      IssueScores<typename Tiles::Query, Keys>(s, query, 0, memory.Key(use));
      CommitProducts();
      WaitForProducts<0>();
      Settle(s);
      release(memory.KeyEmpty(use));
      mask(s, last_block - skipped);
      SoftmaxStep(s, factor, rows, shrink);
      RoundToFragments(s, p);

#pragma unroll 1
      for (int block = last_block - skipped - 1; block >= first_block; --block) {
        ++use;
        WaitForPhase(memory.KeyFull(use), memory.Phase(use));
        token.Take();
        WarpgroupFence();
        IssueScores<typename Tiles::Query, Keys>(s, query, 0, memory.Key(use));
        CommitProducts();
        WaitForPhase(memory.ValueFull(use - 1), memory.Phase(use - 1));
        IssueSum<Keys>(o, p, memory.Value(use - 1));
        CommitProducts();
        token.Pass();
        WaitForProducts<1>();
        Settle(s);
        release(memory.KeyEmpty(use));
        mask(s, block);
        SoftmaxStep(s, factor, rows, shrink);
        WaitForProducts<0>();
        Settle(o);
        Settle(p);
        release(memory.ValueEmpty(use - 1));
        ScaleRows(o, shrink);
        RoundToFragments(s, p);
      }
      release(memory.QueryEmpty());
      WaitForPhase(memory.ValueFull(use), memory.Phase(use));
      WarpgroupFence();
      IssueSum<Keys>(o, p, memory.Value(use));
      CommitProducts();
      float inverse[2], lse[2];
      FinishSoftmax(rows, inverse, lse);
      WaitForProducts<0>();
      Settle(o);
      Settle(p);
      release(memory.ValueEmpty(use));

#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_query + own_row + 8 * half;
        const bool present = row < dims.length;
        uint16_t* to = args.out + (first_token + (present ? row : 0)) * args.out_stride;
        to += head * kDim;
        if (args.amax != nullptr) {
          amax = StoreRow<kDim, true>(o, half, inverse[half], to, present, quad, amax);
        } else {
          StoreRow<kDim, false>(o, half, inverse[half], to, present, quad, 0.0f);
        }
        if (present && quad == 0) {
          args.lse[head * dims.sequences * dims.length + first_token + row] = lse[half];
        }
      }
    } else {
      release(memory.QueryEmpty());
    }
    base += static_cast<uint32_t>(blocks);
  }
  if (args.amax != nullptr) PublishAmax(args.amax, amax, lane);
}

template <int kDim, int kConsumers>
__global__ void __launch_bounds__(kWarpgroup*(kConsumers + 1), 1)
    ForwardKernel(const __grid_constant__ CUtensorMap map, ForwardArgs args, WorkPlan plan) {
#if NIBBLE_HOPPER
  using Tiles = ForwardTiles<kDim, kConsumers>;
  const ForwardMemory<Tiles> memory = {(SharedAddress(DynamicShared()) + 1023u) & ~1023u};
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    constexpr uint32_t kConsumerWarps = 4 * kConsumers;
    InitBarrier(memory.QueryFull(), 1);
    InitBarrier(memory.QueryEmpty(), kConsumerWarps);
    for (uint32_t i = 0; i < 2; ++i) {
      InitBarrier(memory.SlotFull(i), 1);
      InitBarrier(memory.SlotEmpty(i), kConsumerWarps);
    }
    for (uint32_t i = 0; i < Tiles::kStages; ++i) {
      InitBarrier(memory.KeyFull(i), 1);
      InitBarrier(memory.KeyEmpty(i), kConsumerWarps);
      InitBarrier(memory.ValueFull(i), 1);
      InitBarrier(memory.ValueEmpty(i), kConsumerWarps);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (thread < kWarpgroup) {
    ReleaseRegisters<Tiles::kProducerRegisters>();
    if (thread == 0) Produce(&map, args, plan, memory);
  } else {
    ClaimRegisters<Tiles::kConsumerRegisters>();
    Consume<kDim, kConsumers>(args, memory, thread / kWarpgroup - 1);
  }
#else
  (void)map, (void)args, (void)plan;
#endif
}

template <int kDim, int kConsumers>
cudaError_t LaunchOf(const ForwardArgs& args, int processors, cudaStream_t stream) {
  using Tiles = ForwardTiles<kDim, kConsumers>;
  const auto kernel = ForwardKernel<kDim, kConsumers>;
  const AttentionDims& dims = args.dims;
  CUtensorMap map;
  if (const cudaError_t error =
          MakeTensorMap(&map, args.qkv, int64_t{dims.heads + 2 * dims.kv_heads} * kDim, dims.length,
                        dims.sequences, args.qkv_stride);
      error != cudaSuccess) {
    return error;
  }
  // Keys and values of a section stay in the second-level cache.
  constexpr int64_t kSectionBytes = 24 << 20;
  const int64_t heads = dims.sequences * dims.heads, group = dims.heads / dims.kv_heads;
  const int64_t pairs = kSectionBytes / (int64_t{4} * dims.length * kDim);
  const WorkPlan plan = {
      static_cast<int>(heads),
      static_cast<int>((int64_t{dims.length} + Tiles::kQueries - 1) / Tiles::kQueries),
      static_cast<int>(std::clamp<int64_t>(pairs * group, std::min<int64_t>(16, heads), heads))};
  const int64_t count = int64_t{plan.heads} * plan.pieces;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(processors, count)));
  return Launch(kernel, grid, Tiles::kThreads, Tiles::kBytes, stream, map, args, plan);
}

}  // namespace

cudaError_t LaunchHopperForward(const ForwardArgs& args, int processors, int warpgroups,
                                cudaStream_t stream) {
  if (args.dims.head_dim == 128) return LaunchOf<128, 2>(args, processors, stream);
  if (args.dims.head_dim != 64) return cudaErrorInvalidValue;
  // Three warpgroups keep the tensor cores busier, but short sequences do not fill their tiles.
  const int64_t length = args.dims.length, padded = (length + 191) / 192 * 192;
  const bool three = warpgroups == 0 ? padded * 100 <= length * 107 : warpgroups == 3;
  return three ? LaunchOf<64, 3>(args, processors, stream)
               : LaunchOf<64, 2>(args, processors, stream);
}

}  // namespace nibble::gpu
