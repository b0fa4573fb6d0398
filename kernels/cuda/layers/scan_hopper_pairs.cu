// The scan's backward pass inside the chunks on Hopper, first part: dx, what it gives to the
// gradient of dt, and the sums over a group's lanes from which scan_hopper_groups.cu makes dB and
// dC.
//
//   du_j = Σ_{i≥j} M_ij (C_i·B_j) dy_i + leave_j G B_j;  dx_j = Δ_j du_j + D dy_j
//   K_ji = Σ over lanes of M_ij Δ_j (x_j·dy_i)
//
// A thread block processes one chunk of a group, lane by lane. Three warpgroups have the quadrants
// [64 tokens j, 64 tokens i] that hold pairs i ≥ j, the third the one off the diagonal. For all
// lanes a quadrant's C_i·B_j and K_ji are in registers, in FP32. For a lane, x·dyᵀ fills an
// accumulator; M_ij (C_i·B_j), rounded to BF16 in registers, is multiplied with dy and added to
// B·Gᵀ. The third warpgroup's part of du goes through shared memory to the first, which has the
// same rows.
//
// Traffic: per chunk and lane 16 KB each of x, dy and G are read and 16 KB of dx written: at 64
// lanes and 16,384 tokens 0.54 GB, 0.13 ms of a memory that copies 4.26 TB/s. The products, 6.3
// MFLOP of a chunk and lane with those above the diagonal, take half of that. The tiles of the next
// two lanes arrive while those of one are used.
#include "kernels/cuda/layers/scan_backward_inputs.cuh"
#include "kernels/cuda/layers/scan_hopper.cuh"

namespace nibble::gpu {
namespace scan {
namespace {

constexpr int kPairThreads = kQuadrants * kWarpgroup;
constexpr int kLaterBarrier = 1;  // the third warpgroup's part of du is there

struct PairsLayout {
  static constexpr int kStages = 3;
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kDy = kX + TokenTile::kBytes;
  static constexpr uint32_t kG = kDy + TokenTile::kBytes;
  static constexpr uint32_t kStage = kG + StateTile::kBytes;
  static constexpr uint32_t kB = kStages * kStage;
  // The third warpgroup's du, four accumulators of all threads after the other, and sums of W.
  static constexpr uint32_t kLater = kB + TokenStateTile::kBytes;
  static constexpr uint32_t kLaterSums = kLater + kHalf * kColumns * sizeof(float);
  static constexpr uint32_t kDecays = kLaterSums + kHalf * sizeof(float);
  static constexpr uint32_t kSums = kDecays + 2 * sizeof(HeadDecays);
  static constexpr uint32_t kFirst = kSums + 2 * sizeof(InputSums);
  static constexpr uint32_t kBytes = kFirst + kScanChunk * sizeof(int);
  static_assert(kBytes <= 227 << 10);
  static_assert(TokenStateTile::kBytes <= kStage);
};

// What a lane's pairs need and give, for a warp's sixteen rows j.
struct PairRows {
  float until[2], delta[2];
  float sums[2];  // Σ W_ij over i > j, without Δ_j
};

// Block c of a warpgroup's quadrant, of tokens i after the warp's own. col_factor: the decay from
// the end of the warp's block to each of the lane's four columns. mixed: M_ij (C_i·B_j).
template <bool kMasked>
__device__ __forceinline__ void MixLaterPairs(const float (&scores)[32],
                                              const float (&products)[32], int c,
                                              const float (&col_factor)[4], const int (&first)[4],
                                              int row0, PairRows& rows, float (&pairs)[32],
                                              float (&columns)[4], float (&mixed)[8]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int col = half * 2 + e;
      float column = 0;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int at = half * 4 + row * 2 + e;
        float score = scores[8 * c + at], product = products[8 * c + at];
        if (kMasked && first[col] > row0 + row * 8) score = product = 0;
        const float factor = col_factor[col] * rows.until[row];
        const float m = score * factor;
        const float w = m * product;
        mixed[at] = m;
        rows.sums[row] += w;
        column = fmaf(w, rows.delta[row], column);
        pairs[8 * c + at] = fmaf(factor * product, rows.delta[row], pairs[8 * c + at]);
      }
      columns[col] = column;
    }
  }
}

// The same of the warp's own block; also adds x_j·dy_j to dd.
__device__ __forceinline__ void MixOwnPairs(const float (&scores)[32], const float (&products)[32],
                                            int c, const HeadDecays& decays, const int* first_seen,
                                            int block, PairRows& rows, float (&pairs)[32],
                                            float (&columns)[4], float& dd, float (&mixed)[8]) {
  const int row0 = block * kBlock + static_cast<int>(threadIdx.x % 32 / 4);
  const int col0 = block * kBlock + static_cast<int>(threadIdx.x % 4) * 2;
  const float row_high[2] = {decays.high[row0], decays.high[row0 + 8]};
  const float row_low[2] = {decays.low[row0], decays.low[row0 + 8]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = col0 + half * 8 + e;
      const float high = decays.high[i], low = decays.low[i];
      const int first = first_seen[i];
      float column = 0;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const int j = row0 + row * 8;
        const int at = half * 4 + row * 2 + e;
        const bool seen = i >= j && first <= j;
        const float score = scores[8 * c + at], product = products[8 * c + at];
        const float factor = seen ? Exp2((high - row_high[row]) + (low - row_low[row])) : 0.0f;
        const float pair = seen ? factor * product : 0.0f;
        mixed[at] = seen ? factor * score : 0.0f;
        pairs[8 * c + at] = fmaf(pair, rows.delta[row], pairs[8 * c + at]);
        const float w = seen && i > j ? pair * score : 0.0f;
        rows.sums[row] += w;
        column = fmaf(w, rows.delta[row], column);
        if (i == j) dd += product;
      }
      columns[half * 2 + e] = column;
    }
  }
}

__global__ __launch_bounds__(kPairThreads,
                             1) void PairsKernel(const __grid_constant__ ScanArgs args) {
  using Layout = PairsLayout;
  unsigned char* memory = DynamicShared();
  const uint32_t shared = SharedAddress(memory);
  HeadDecays* decays = reinterpret_cast<HeadDecays*>(memory + Layout::kDecays);
  InputSums* all_sums = reinterpret_cast<InputSums*>(memory + Layout::kSums);
  int* first_seen = reinterpret_cast<int*>(memory + Layout::kFirst);
  const int warpgroup = static_cast<int>(threadIdx.x / kWarpgroup);
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup), quad = thread % 4;
  const int group = static_cast<int>(blockIdx.x % args.groups);
  const ChunkPlace chunk = PlaceOfChunk(args, blockIdx.x / args.groups);
  const ScanChunkInfo info = args.chunks[chunk.index];
  const int lanes = args.lanes / args.groups, lane_begin = group * lanes;
  const uint16_t* xbc = Bf16(args.xbc) + chunk.row * args.xbc_stride;
  const uint16_t* dy = Bf16(args.dy) + chunk.row * args.dy_stride;
  // The quadrant's halves of the tokens j and i; the warp's block of j.
  const int row_half = warpgroup == 1 ? 1 : 0, col_half = warpgroup == 0 ? 0 : 1;
  const bool off_diagonal = warpgroup == 2;
  const int block = row_half * (kBlocks / 2) + thread / 32;
  const int row0 = block * kBlock + thread % 32 / 4;

  const auto load_lane = [&](int index) {
    if (index < lanes) {
      const int at = Opaque(thread), lane = lane_begin + index;
      const LaneColumns columns = ColumnsOf(args, lane);
      const uint32_t to = shared + index % Layout::kStages * Layout::kStage;
      if (warpgroup == 0) {
        LoadPanels<kScanChunk, kColumns>(to + Layout::kX, xbc + columns.col, args.xbc_stride, 0,
                                         info.tokens, columns.cols, at);
      } else if (warpgroup == 1) {
        LoadPanels<kScanChunk, kColumns>(to + Layout::kDy, dy + columns.col, args.dy_stride, 0,
                                         info.tokens, columns.cols, at);
      } else if (info.followed) {
        LoadPanels<kColumns, kState>(to + Layout::kG,
                                     Bf16(args.gradients) + StateOffset(args, chunk.index, lane),
                                     kState, 0, kColumns, kState, at);
      }
    }
    CommitCopies();
  };
  const uint32_t b_tile = shared + Layout::kB, c_tile = shared + 2 * Layout::kStage;
  if (warpgroup < 2) {
    LoadPanels<kScanChunk, kState>(
        warpgroup == 0 ? b_tile : c_tile,
        xbc + (warpgroup == 0 ? BColumn(args, group) : CColumn(args, group)), args.xbc_stride, 0,
        info.tokens, args.state, thread);
  }
  CommitCopies();
  load_lane(0);
  load_lane(1);
  TokenDecays token;
  if (off_diagonal) {
    first_seen[thread] = FirstSeen(args, chunk, info.tokens, thread);
    token.Fetch(DecaysOf(args, chunk.index, lane_begin / args.slices), thread);
    token.Publish(decays[0], thread);
  }
  WaitForCopyGroups<2>();
  FenceAsyncShared();
  __syncthreads();

  float scores[32], pairs[32] = {};
  WarpgroupFence();
  IssueScores<TokenStateTile, TokenStateTile>(scores, b_tile, row_half * kHalf,
                                              c_tile + col_half * kHalfBytes);
  CommitProducts();
  WaitForProducts<0>();
  Settle(scores);

  const bool leaves = !off_diagonal && info.followed && (block + 1) * kBlock > info.last_doc;
  for (int n = 0; n < lanes; ++n) {
    WaitForCopyGroups<1>();
    FenceAsyncShared();
    __syncthreads();
    if (n > 0) WriteInputSums(args, all_sums[(n - 1) % 2], chunk.index, lane_begin + n - 1);
    load_lane(n + 2);
    if (off_diagonal && n + 1 < lanes) {
      token.Fetch(DecaysOf(args, chunk.index, (lane_begin + n + 1) / args.slices), thread);
    }
    const HeadDecays& head = decays[n % 2];
    InputSums& sums = all_sums[n % 2];
    const uint32_t stage = shared + n % Layout::kStages * Layout::kStage;
    const uint32_t x_tile = stage + Layout::kX, dy_tile = stage + Layout::kDy;
    const uint32_t dy_columns = dy_tile + col_half * kHalfBytes;

    // B·Gᵀ is not used where nothing leaves, nor by the third warpgroup.
    float products[32], du[32];
    WarpgroupFence();
    IssueScores<TokenTile, TokenTile>(products, x_tile, row_half * kHalf, dy_columns);
    CommitProducts();
    IssueScores<TokenStateTile, StateTile>(du, b_tile, row_half * kHalf, stage + Layout::kG);
    CommitProducts();

    PairRows rows = {
        {head.until[row0], head.until[row0 + 8]}, {head.delta[row0], head.delta[row0 + 8]}, {0, 0}};
    float over = head.OverBlocks(block + 1, col_half * (kBlocks / 2));
    float dd = 0;
    uint32_t left[16];
    WaitForProducts<1>();
    Settle(products);
#pragma unroll
    for (int c = 0; c < kBlocks / 2; ++c) {
      const int later = col_half * (kBlocks / 2) + c;
      float mixed[8] = {};
      if (later >= block) {
        const BlockDocuments documents = DocumentsOf(first_seen, later);
        float columns[4] = {};
        if (later == block) {
          MixOwnPairs(scores, products, c, head, first_seen, block, rows, pairs, columns, dd,
                      mixed);
        } else if (!documents.SeesNothingIn(block)) {
          const int col = later * kBlock + quad * 2;
          const float2 begin0 = *reinterpret_cast<const float2*>(head.begin + col);
          const float2 begin1 = *reinterpret_cast<const float2*>(head.begin + col + 8);
          const float col_factor[4] = {begin0.x * over, begin0.y * over, begin1.x * over,
                                       begin1.y * over};
          int first[4] = {};
          if (documents.SeesAllOf(block)) {
            MixLaterPairs<false>(scores, products, c, col_factor, first, row0, rows, pairs, columns,
                                 mixed);
          } else {
#pragma unroll
            for (int e = 0; e < 4; ++e) first[e] = first_seen[col + e / 2 * 8 + e % 2];
            MixLaterPairs<true>(scores, products, c, col_factor, first, row0, rows, pairs, columns,
                                mixed);
          }
          over *= head.OverBlock(later);
        }
        StoreColumnSums(columns, sums.columns[block] + later * kBlock);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) left[4 * c + i] = Bf16Pair(mixed[2 * i], mixed[2 * i + 1]);
    }

    const uint32_t x_rows = PanelRows(x_tile, block * kBlock);
    float balance[2] = {};
    WaitForProducts<0>();
    Settle(du);
    float factor[2] = {};
    if (leaves) {
      float dot[2];
      DotRows(x_rows, du, dot);
      const float after = head.OverBlocks(block + 1, kBlocks);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        if (row0 + row * 8 < info.last_doc) continue;
        factor[row] = rows.until[row] * after;
        balance[row] = dot[row] * factor[row] * rows.delta[row];
      }
    }
    const bool here[2] = {leaves && row0 >= info.last_doc, leaves && row0 + 8 >= info.last_doc};
#pragma unroll
    for (int i = 0; i < 32; ++i) du[i] = here[i % 4 / 2] ? du[i] * factor[i % 4 / 2] : 0.0f;
    WarpgroupFence();
    IssueSum<TokenTile>(du, left, dy_columns);
    CommitProducts();
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      balance[row] = fmaf(SumOfRow(rows.sums[row]), rows.delta[row], balance[row]);
    }
    WaitForProducts<0>();
    Settle(du);
    Settle(left);

    float4* const later_du = reinterpret_cast<float4*>(memory + Layout::kLater) + thread;
    float* const later_sums = reinterpret_cast<float*>(memory + Layout::kLaterSums) + row0 % kHalf;
    if (off_diagonal) {
      LeaveAccumulator(du, later_du);
      if (quad == 0) {
        later_sums[0] = balance[0];
        later_sums[8] = balance[1];
      }
      ArriveAtBarrier(kLaterBarrier, 2 * kWarpgroup);
      if (n + 1 < lanes) token.Publish(decays[(n + 1) % 2], thread);
      continue;
    }
    if (warpgroup == 0) {
      WaitAtBarrier(kLaterBarrier, 2 * kWarpgroup);
      AddAccumulator(later_du, du);
      balance[0] += later_sums[0];
      balance[1] += later_sums[8];
    }

    // dx takes the place of the warp's rows of x, which no other warp reads any more.
    const LaneColumns columns = ColumnsOf(args, lane_begin + n);
    const float d = __ldg(args.d + columns.head);
    float x_du[2];
    DotRows(x_rows, du, x_du);
#pragma unroll
    for (int i = 0; i < 32; ++i) du[i] *= rows.delta[i % 4 / 2];
    AddScaledRows(PanelRows(dy_tile, block * kBlock), d, du);
#pragma unroll
    for (unsigned mask = 1; mask < 32; mask *= 2) dd += FromLane(dd, mask);
    if (thread % 32 == 0) sums.dd[block] = dd;
    if (quad == 0) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        sums.balance[row0 + row * 8] = balance[row];
        sums.delta[row0 + row * 8] = x_du[row];
      }
    }
    RoundPairs(du, left);
    StorePanelRows(x_tile, block * kBlock, left,
                   Bf16(args.dxbc) + (chunk.row + block * kBlock) * args.dxbc_stride + columns.col,
                   args.dxbc_stride, info.tokens - block * kBlock, columns.cols);
  }

  WaitForCopyGroups<0>();
  __syncthreads();
  WriteInputSums(args, all_sums[(lanes - 1) % 2], chunk.index, lane_begin + lanes - 1);
  uint16_t* const to = QuadrantOf(args, chunk.index, group, warpgroup) +
                       (thread / 32 * kBlock + thread % 32 / 4) * kHalf + quad * 2;
  uint32_t words[16];
  RoundPairs(pairs, words);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    *reinterpret_cast<uint32_t*>(to + i % 2 * (8 * kHalf) + i / 2 * 8) = words[i];
  }
}

}  // namespace
}  // namespace scan

cudaError_t LaunchScanHopperPairs(const ScanArgs& args, cudaStream_t stream) {
  constexpr int kBytes = scan::PairsLayout::kBytes;
  return Launch(scan::PairsKernel, dim3(static_cast<unsigned>(args.chunk_count() * args.groups)),
                scan::kPairThreads, kBytes, stream, args);
}

}  // namespace nibble::gpu
