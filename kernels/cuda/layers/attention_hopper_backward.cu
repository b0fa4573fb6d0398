// Attention's backward pass on Hopper: one pass over all pairs of query tiles and key blocks, five
// matmuls each, the same bits every time.
//
// A persistent block per multiprocessor takes blocks of 128 keys of one key head, and walks over
// the query tiles that attend to them, for each query head of the group: last tile first. Two
// consumer warpgroups own 64 keys each. They multiply the transposed scores k·qᵀ and v·doutᵀ, whose
// accumulators become fragments of dv += pᵀ·dout and dk += dsᵀ·q without leaving the registers; ds
// also goes through shared memory, for dq = ds·k.
//
// dq is summed over key blocks in FP32 in global memory, in turns: the contributions to a query
// tile are added in ascending order of their key blocks. A writer thread waits for its block's
// turn, adds the tile with one bulk reduction, waits until it is done and passes the turn. That
// takes longer than the matmuls of a tile: three writers take tiles in turn, from two buffers that
// are free again once they were read, so that the latency of one is behind the others'. The first
// contribution is stored, so that nothing is cleared. The last one comes from the block on the
// diagonal, which writes dq as BF16, so that there is no pass over the sums afterwards: a writer
// fetches the sums of the others into the buffer while matmuls run, and the consumers add their
// own in registers.
//
// Work is taken in ascending order of key blocks (longest first) within sections of heads whose
// operands stay in the second-level cache. A block waits only for blocks that were taken before, so
// that turns always come; as all walk down from the last tile, and later ones start later, they
// seldom wait.
//
// Limit: 10 · length² / 2 · head_dim FLOPs per head on the tensor cores.
#include <algorithm>

#include "kernels/cuda/layers/attention_hopper_backward.cuh"
#include "kernels/cuda/layers/attention_kernels.h"

namespace nibble::gpu {
namespace {

constexpr int kThreads = kWarpgroup * (kConsumers + 1);
// See ForwardTiles: the block is launched with 168 registers per thread.
[[maybe_unused]] constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
static_assert(kProducerRegisters + kConsumers * kConsumerRegisters <= (kConsumers + 1) * 168);

template <int kDim>
__device__ __forceinline__ void Produce(const CUtensorMap* qkv, const CUtensorMap* dout,
                                        const BackwardArgs& args, const WorkPlan& plan,
                                        BackwardMemory<kDim> block_memory) {
  using Tiles = BackwardTiles<kDim>;
  BackwardMemory<kDim> memory = block_memory;
  const AttentionDims& dims = args.dims;
  int index = NextWork(args.schedule);
  uint32_t step = 0;
  for (uint32_t job = 0;; ++job) {
    WaitForPhase(memory.SlotEmpty(job), memory.Phase(job) ^ 1u);
    if (index >= plan.count()) {
      StoreSharedInts(memory.Slot(job), make_int4(-1, 0, 0, 0));
      Arrive(memory.SlotFull(job));
      break;
    }
    const int next = NextWork(args.schedule);
    const Work work = WorkAt(plan, index);
    const int first_key = work.piece * kKeys, length = dims.length;
    const int32_t* last_query = args.last_query + int64_t{work.head / dims.kv_heads} * length;
    const int last_key = (length - first_key < kKeys ? length : first_key + kKeys) - 1;
    const Job what = {work.head, work.piece, last_query[last_key] / Tiles::kQueries,
                      last_query[first_key]};
    StoreSharedInts(memory.Slot(job),
                    make_int4(what.pair, what.block, what.last_tile, what.all_see));
    Arrive(memory.SlotFull(job));

    const JobPlace<kDim> place(args, what);
#pragma unroll 1
    for (int member = 0; member < place.group; ++member) {
#pragma unroll 1
      for (int tile = what.last_tile; tile >= place.first_tile; --tile, ++step) {
        memory.base = Kept(block_memory.base);  // as in Consume
        const int column = place.head(member) * kDim, first_query = tile * Tiles::kQueries;
        const int row = place.row(member, tile);
        const uint32_t empty = memory.Phase(step) ^ 1u;
        WaitForPhase(memory.QueryEmpty(step), empty);
        const uint32_t query_full = memory.QueryFull(step);
        ArriveAndExpect(query_full, Tiles::Queries::kBytes + Tiles::kRowBytes);
        Tiles::Queries::Copy(memory.Query(step), qkv, column, first_query, place.sequence,
                             query_full);
        CopyBytes(memory.Lse2(step), args.lse2 + row, Tiles::kRowBytes, query_full);
        if (member == 0 && tile == what.last_tile) {
          WaitForPhase(memory.KeyEmpty(), (job & 1u) ^ 1u);
          ArriveAndExpect(memory.KeyFull(), Tiles::Keys::kBytes);
          Tiles::Keys::Copy(memory.Key(), qkv, place.key_column(), first_key, place.sequence,
                            memory.KeyFull());
          WaitForPhase(memory.ValueEmpty(), (job & 1u) ^ 1u);
          ArriveAndExpect(memory.ValueFull(), Tiles::Keys::kBytes);
          Tiles::Keys::Copy(memory.Value(), qkv, place.value_column(), first_key, place.sequence,
                            memory.ValueFull());
        }
        WaitForPhase(memory.DoutEmpty(step), empty);
        const uint32_t dout_full = memory.DoutFull(step);
        ArriveAndExpect(dout_full, Tiles::Queries::kBytes + Tiles::kRowBytes);
        Tiles::Queries::Copy(memory.Dout(step), dout, column, first_query, place.sequence,
                             dout_full);
        CopyBytes(memory.Dots(step), args.dots + row, Tiles::kRowBytes, dout_full);
      }
    }
    index = next;
  }
  FinishWork(args.schedule);
}

// One thread, of every kWriters-th tile of dq: adds it to the sums in global memory, or fetches
// them for the consumers if the tile is the block's to finish.
template <int kDim>
__device__ __forceinline__ void WriteSums(const BackwardArgs& args, BackwardMemory<kDim> memory,
                                          uint32_t writer) {
  constexpr uint32_t kBytes = BackwardTiles<kDim>::kDqBytes;
  uint32_t next_passed = 0, next_fetched = 0;
  for (uint32_t number = 0;; ++number) {
    WaitForPhase(memory.SlotFull(number), memory.Phase(number));
    const int4 x = LoadSharedInts(memory.Slot(number));
    Arrive(memory.SlotEmpty(number));
    const Job job = {x.x, x.y, x.z, x.w};
    if (job.pair < 0) break;
    const JobPlace<kDim> place(args, job);
#pragma unroll 1
    for (int member = 0; member < place.group; ++member) {
#pragma unroll 1
      for (int tile = job.last_tile; tile >= place.first_tile; --tile) {
        const bool fetches = place.IsLast(tile);
        if (fetches && place.turn(tile) == 0) continue;
        const uint32_t passed = next_passed++, fetched = next_fetched;
        next_fetched += fetches ? 1u : 0u;
        if (passed % kWriters != writer) continue;
        const int turn = place.turn(tile);
        int* const turns = place.turns(member, tile);
        float* const sums = args.dq_sums + int64_t{place.row(member, tile)} * kDim;
        if (fetches) {
          memory.WaitForDqEmpty(passed);
          WaitForTurn(turns, turn);
          FenceAsyncGlobal();
          ArriveAndExpect(memory.SumsFull(fetched), kBytes);
          CopyBytes(memory.Dq(passed), sums, kBytes, memory.SumsFull(fetched));
          memory.WaitForDqDone(passed);
          Arrive(memory.DqEmpty(passed));
          continue;
        }
        memory.WaitForDqDone(passed);
        if (turn == 0) {
          StoreFloats(sums, memory.Dq(passed), kBytes);
        } else {
          WaitForTurn(turns, turn);
          FenceAsyncGlobal();
          AddFloats(sums, memory.Dq(passed), kBytes);
        }
        CommitBulk();
        WaitForBulkReads();
        Arrive(memory.DqEmpty(passed));
        WaitForBulk();
        FenceAsyncGlobal();
        PassTurn(turns);
      }
    }
  }
}

// Stores dq of a tile on the diagonal.
template <int kDim>
__device__ __forceinline__ void FinishQueries(const JobPlace<kDim>& place, int member, int tile,
                                              int consumer, float (&dq)[32]) {
  const BackwardArgs& args = place.args;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup, lane = thread % 32;
  // With head_dim 128 the consumers share the rows, with 64 the columns.
  const int first_row = tile * place.kQueries + (kDim == 128 ? 0 : consumer * 64);
  const int column = place.head(member) * kDim + (kDim == 128 ? consumer * 64 : 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int query = first_row + thread / 32 * 16 + lane / 4 + 8 * half;
    const bool present = query < args.dims.length;
    uint16_t* to =
        args.dqkv + (place.first_token() + (present ? query : 0)) * args.dqkv_stride + column;
    StoreRow<64, false>(dq, half, args.dims.scale, to, present, lane % 4, 0.0f);
  }
}

template <int kDim>
__device__ __forceinline__ void Consume(const BackwardArgs& args, BackwardMemory<kDim> block_memory,
                                        int consumer) {
  using Tiles = BackwardTiles<kDim>;
  constexpr int kQueries = Tiles::kQueries;
  const AttentionDims& dims = args.dims;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  const int lane = thread % 32, quad = lane % 4;
  const int first_row = consumer * 64 + thread / 32 * 16;  // of the warp's sixteen keys
  const float factor = dims.scale * kLog2E;
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) Arrive(barrier);
  };
  BackwardMemory<kDim> memory = block_memory;
  uint32_t step = 0, passed = 0, fetched = 0;

  for (uint32_t number = 0;; ++number) {
    const Job job = ReadJob(memory, number, lane);
    if (job.pair < 0) break;
    const JobPlace<kDim> place(args, job);
    const int first_key = job.block * kKeys;
    int key[2], last[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      key[half] = first_key + first_row + lane / 4 + 8 * half;
      const int inside = key[half] < dims.length ? key[half] : dims.length - 1;
      last[half] = args.last_query[place.first_token() + inside];
    }
    float dk[kDim / 2], dv[kDim / 2];
#pragma unroll
    for (int i = 0; i < kDim / 2; ++i) dk[i] = dv[i] = 0.0f;

    // Scores of [64 keys, kQueries]. Those of a tile are multiplied while the tile before is
    // finished.
    float p[kQueries / 2];
    const auto issue_scores = [&](uint32_t of_step) {
      WaitForPhase(memory.QueryFull(of_step), memory.Phase(of_step));
      WarpgroupFence();
      IssueScores<typename Tiles::Keys, typename Tiles::Queries>(p, memory.Key(), consumer * 64,
                                                                 memory.Query(of_step));
    };
    WaitForPhase(memory.KeyFull(), number & 1u);
    issue_scores(step);
    CommitProducts();
    WaitForPhase(memory.ValueFull(), number & 1u);
    WaitForProducts<0>();
    Settle(p);
#pragma unroll 1
    for (int member = 0; member < place.group; ++member) {
#pragma unroll 1
      for (int tile = job.last_tile; tile >= place.first_tile; --tile, ++step) {
        // Addresses and operands are cheap to compute, and would fill the registers if kept.
        memory.base = Kept(block_memory.base);
        const bool last_step = member == place.group - 1 && tile == place.first_tile;
        const uint32_t phase = memory.Phase(step);
        float ds[kQueries / 2];  // gradients of the probabilities, then of the scores
        WaitForPhase(memory.DoutFull(step), phase);
        WarpgroupFence();
        IssueScores<typename Tiles::Keys, typename Tiles::Queries>(
            ds, memory.Value(), consumer * 64, memory.Dout(step));
        CommitProducts();

        VisibleColumns visible;
        const int first_query = tile * kQueries;
        const bool masked =
            first_query < first_key + kKeys - 1 || first_query + kQueries - 1 > job.all_see;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          visible.first[half] = key[half] - first_query - 2 * quad;
          visible.last[half] = last[half] - first_query - 2 * quad;
        }
        float2 of_query[kQueries / 8];  // lse2, and then dots, of the thread's queries
        const uint32_t lse2 = memory.Lse2(step) + static_cast<uint32_t>(quad * 8);
#pragma unroll
        for (int i = 0; i < kQueries / 8; ++i) {
          of_query[i] = LoadShared8(lse2 + static_cast<uint32_t>(i * 32));
        }
#pragma unroll
        for (int i = 0; i < kQueries / 2; ++i) {
          const float2 x = of_query[i / 4];
          p[i] = Exp2(__fmaf_rn(p[i], factor, i % 2 == 0 ? -x.x : -x.y));
        }
        if (masked) MaskToZero(p, visible);
        uint32_t weights[kQueries / 4], gradients[kQueries / 4];
        RoundToFragments(p, weights);
        const uint32_t dots = memory.Dots(step) + static_cast<uint32_t>(quad * 8);
#pragma unroll
        for (int i = 0; i < kQueries / 8; ++i) {
          of_query[i] = LoadShared8(dots + static_cast<uint32_t>(i * 32));
        }
        WaitForProducts<0>();
        Settle(ds);
        if (last_step) release(memory.ValueEmpty());
#pragma unroll
        for (int i = 0; i < kQueries / 2; ++i) {
          const float2 x = of_query[i / 4];
          ds[i] = p[i] * (ds[i] - (i % 2 == 0 ? x.x : x.y));
        }
        if (masked) MaskToZero(ds, visible);
        RoundToFragments(ds, gradients);

        // dsᵀ as [keys, queries]: four 8×8 matrices are 16 keys × 16 queries. The tile's other
        // buffer may still be read by the other warpgroup's last matmul.
        const int row = first_row + lane % 16;
        const uint32_t line = memory.Scores(step) + static_cast<uint32_t>(row * kPanelRowBytes);
#pragma unroll
        for (int i = 0; i < kQueries / 16; ++i) {
          const int piece = 2 * i + lane / 16;  // of 8 queries
          StoreMatrices(line + static_cast<uint32_t>(piece / 8 * Tiles::Scores::kPanelBytes +
                                                     (piece % 8 ^ row % 8) * 16),
                        gradients[4 * i], gradients[4 * i + 1], gradients[4 * i + 2],
                        gradients[4 * i + 3]);
        }
        FenceAsyncShared();
        WarpgroupFence();
        IssueSum<typename Tiles::Queries>(dv, weights, memory.Dout(step));
        CommitProducts();
        WaitAtBarrier(1, kConsumers * kWarpgroup);
        float dq[32];
        {
          const uint64_t left =
              Tiles::Scores::AlongOutput(memory.Scores(step), kDim == 128 ? 0 : consumer);
          const uint64_t right = Tiles::Keys::AlongOutput(memory.Key(), kDim == 128 ? consumer : 0);
          constexpr uint32_t kStep = DepthStepBytes(Along::kOutput);
          WarpgroupFence();
#pragma unroll
          for (uint32_t i = 0; i < kKeys / 16; ++i) {
            MultiplyShared<Along::kOutput, Along::kOutput>(dq, Advance(left, i * kStep),
                                                           Advance(right, i * kStep), i != 0);
          }
          CommitProducts();
        }
        WaitForProducts<1>();
        Settle(dv);
        Settle(weights);
        release(memory.DoutEmpty(step));
        // After the last tile these scores are not read; a branch would make matmuls wait for each
        // other.
        issue_scores(last_step ? step : step + 1);
        CommitProducts();
        IssueSum<typename Tiles::Queries>(dk, gradients, memory.Query(step));
        CommitProducts();
        WaitForProducts<2>();
        Settle(dq);
        const uint32_t buffer =
            memory.Dq(passed) + static_cast<uint32_t>(consumer * kDqFloats * 4 + thread * 16);
        if (place.IsLast(tile)) {
          if (place.turn(tile) > 0) {
            memory.WaitForSums(fetched);
#pragma unroll
            for (int i = 0; i < kDqPieces; ++i) {
              float sum[4];
              LoadSharedFloats(buffer + static_cast<uint32_t>(i * kWarpgroup * 16), sum);
#pragma unroll
              for (int e = 0; e < 4; ++e) dq[4 * i + e] += sum[e];
            }
            FenceAsyncShared();  // the buffer's next contents may be fetched, too
            SyncWarp();
            release(memory.DqDone(passed));
            ++fetched;
            ++passed;
          }
          FinishQueries(place, member, tile, consumer, dq);
        } else {
          memory.WaitForDqEmpty(passed);
#pragma unroll
          for (int i = 0; i < kDqPieces; ++i) {
            const float piece[4] = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
            StoreShared16(buffer + static_cast<uint32_t>(i * kWarpgroup * 16), piece);
          }
          FenceAsyncShared();
          SyncWarp();
          release(memory.DqDone(passed));
          ++passed;
        }
        WaitForProducts<0>();
        Settle(p);
        Settle(dk);
        Settle(gradients);
        release(memory.QueryEmpty(step));
        if (last_step) release(memory.KeyEmpty());
      }
    }

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool present = key[half] < dims.length;
      uint16_t* to =
          args.dqkv + (place.first_token() + (present ? key[half] : 0)) * args.dqkv_stride;
      StoreRow<kDim, false>(dk, half, dims.scale, to + place.key_column(), present, quad, 0.0f);
      StoreRow<kDim, false>(dv, half, 1.0f, to + place.value_column(), present, quad, 0.0f);
    }
  }
}

template <int kDim>
__global__ void __launch_bounds__(kThreads, 1)
    BackwardKernel(const __grid_constant__ CUtensorMap qkv,
                   const __grid_constant__ CUtensorMap dout, BackwardArgs args, WorkPlan plan) {
#if NIBBLE_HOPPER
  const BackwardMemory<kDim> memory = {SharedAddress(DynamicShared())};
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    InitBarrier(memory.KeyFull(), 1);
    InitBarrier(memory.KeyEmpty(), kConsumerWarps);
    InitBarrier(memory.ValueFull(), 1);
    InitBarrier(memory.ValueEmpty(), kConsumerWarps);
    for (uint32_t i = 0; i < kWriters; ++i) InitBarrier(memory.DqDone(i), kConsumerWarps);
    for (uint32_t i = 0; i < DqBuffers::kEmptyBarriers; ++i) InitBarrier(memory.DqEmpty(i), 1);
    for (uint32_t i = 0; i < 2; ++i) {
      InitBarrier(memory.SumsFull(i), 1);
      InitBarrier(memory.QueryFull(i), 1);
      InitBarrier(memory.QueryEmpty(i), kConsumerWarps);
      InitBarrier(memory.DoutFull(i), 1);
      InitBarrier(memory.DoutEmpty(i), kConsumerWarps);
      InitBarrier(memory.SlotFull(i), 1);
      InitBarrier(memory.SlotEmpty(i), kConsumerWarps + kWriters);
    }
    PublishBarriers();
  }
  __syncthreads();
  if (thread < kWarpgroup) {
    ReleaseRegisters<kProducerRegisters>();
    if (thread == 0) {
      Produce<kDim>(&qkv, &dout, args, plan, memory);
    } else if (thread % 32 == 0) {  // a warp each
      static_assert(kWriters == kWarpgroup / 32 - 1);
      WriteSums<kDim>(args, memory, static_cast<uint32_t>(thread) / 32 - 1);
    }
  } else {
    ClaimRegisters<kConsumerRegisters>();
    Consume<kDim>(args, memory, thread / kWarpgroup - 1);
  }
#else
  (void)qkv, (void)dout, (void)args, (void)plan;
#endif
}

template <int kDim>
cudaError_t LaunchOf(const BackwardArgs& args, int processors, cudaStream_t stream) {
  using Tiles = BackwardTiles<kDim>;
  const auto kernel = BackwardKernel<kDim>;
  const AttentionDims& dims = args.dims;
  CUtensorMap qkv, dout;
  cudaError_t error = MakeTensorMap(&qkv, args.qkv, int64_t{dims.heads + 2 * dims.kv_heads} * kDim,
                                    dims.length, dims.sequences, args.qkv_stride);
  if (error == cudaSuccess) {
    error = MakeTensorMap(&dout, args.dout, int64_t{dims.heads} * kDim, dims.length, dims.sequences,
                          args.dout_stride);
  }
  if (error != cudaSuccess) return error;
  // q, dout and the sums of dq of a section stay in the second-level cache, unless that leaves so
  // few heads that many blocks work on each: those of a head begin together, and each waits at its
  // first tile for all before it.
  constexpr int64_t kSectionBytes = 32 << 20, kLeastHeads = 32;
  const int64_t pairs = dims.sequences * dims.kv_heads;
  const int64_t section = kSectionBytes / (int64_t{8} * dims.length * kDim);
  const WorkPlan plan = {
      static_cast<int>(pairs), static_cast<int>((int64_t{dims.length} + kKeys - 1) / kKeys),
      static_cast<int>(std::clamp<int64_t>(section, std::min<int64_t>(kLeastHeads, pairs), pairs))};
  const int64_t count = int64_t{plan.heads} * plan.pieces;
  const dim3 grid(static_cast<unsigned>(std::min<int64_t>(processors, count)));
  return Launch(kernel, grid, kThreads, Tiles::kBytes, stream, qkv, dout, args, plan);
}

}  // namespace

cudaError_t LaunchHopperBackward(const BackwardArgs& args, int processors, cudaStream_t stream) {
  if (args.dims.head_dim == 128) return LaunchOf<128>(args, processors, stream);
  if (args.dims.head_dim == 64) return LaunchOf<64>(args, processors, stream);
  return cudaErrorInvalidValue;
}

}  // namespace nibble::gpu
