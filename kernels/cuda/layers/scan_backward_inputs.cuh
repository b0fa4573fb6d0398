// The half of the scan's backward pass whose rows are the tokens j that write to the state: dx and
// dB, and their contributions to the gradient of dt.
//
//   du_j = Σ_{i≥j} M_ij (C_i·B_j) dy_i + leave_j G B_j;  dx_j = Δ_j du_j + D dy_j
//   dB_j = Σ over lanes of Σ_{i≥j} K_ji C_i + leave_j Δ_j Gᵀ x_j,  K_ji = M_ij Δ_j (x_j·dy_i)
//
// A thread block processes one chunk of a group, lane by lane; a warp has 16 tokens j. For all
// lanes it keeps B_j and dB in registers, and C_i·B_j and K, summed over the lanes, in FP32 in
// shared memory: with them, registers would not suffice.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_BACKWARD_INPUTS_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_BACKWARD_INPUTS_CUH_

#include "kernels/cuda/layers/scan_pairs.cuh"

namespace nibble::gpu::scan {

// Sums of one lane, read when all warps have finished it.
struct InputSums {
  float balance[kScanChunk];           // Σ_{i>j} W_ij + f_j
  float delta[kScanChunk];             // x_j · du_j
  float columns[kBlocks][kScanChunk];  // Σ W_ij over the tokens j < i of a warp, by i
  float dd[kBlocks];
};

template <int kP, int kN>
struct InputLayout {
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kDy = kX + kScanChunk * kPitch<kP>;
  static constexpr uint32_t kG = kDy + kScanChunk * kPitch<kP>;
  static constexpr uint32_t kStage = kG + kP * kPitch<kN>;
  // B at the beginning, then K.
  static constexpr uint32_t kPairs = 2 * kStage;
  static constexpr uint32_t kScores = kPairs + kAllPairBytes;
  static constexpr uint32_t kDecays = kScores + kAllPairBytes;
  static constexpr uint32_t kSums = kDecays + 2 * sizeof(HeadDecays);
  static constexpr uint32_t kFirst = kSums + 2 * sizeof(InputSums);
  static constexpr uint32_t kBytes = kFirst + kScanChunk * sizeof(int);
  static_assert(kScanChunk * kPitch<kN> <= kStage && kScanChunk * kPitch<kN> <= kAllPairBytes);
};

// One lane's sums of W_ij of a block; i: columns, j: rows of the warp.
struct PairSums {
  float row[2];     // of all blocks of the warp, without the row's factor
  float column[4];  // of this block
};

// A block of tokens i after the warp's own. col_factor: the decay from the end of the warp's block
// to each of the lane's four columns; row_factor: the rest of the decay, times Δ_j. mixed: M_ij
// (C_i·B_j) without the rest of the decay.
template <bool kMasked>
__device__ __forceinline__ void MixLater(const float (&scores)[8], float (&products)[2][4],
                                         const float (&col_factor)[4], const float (&row_factor)[2],
                                         const int (&first)[4], int row0, float (&pairs)[8],
                                         PairSums& sums, float (&mixed)[2][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int col = half * 2 + e;
      float column = 0;
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        float score = scores[half * 4 + row * 2 + e];
        float product = products[half][row * 2 + e];
        if (kMasked && first[col] > row0 + row * 8) score = product = 0;
        const float m = score * col_factor[col];
        const float w = m * product;
        mixed[half][row * 2 + e] = m;
        sums.row[row] += w;
        column = fmaf(w, row_factor[row], column);
        float& pair = pairs[half * 4 + row * 2 + e];
        pair = fmaf(col_factor[col] * row_factor[row], product, pair);
      }
      sums.column[col] = column;
    }
  }
}

// The warp's own block; also adds x_j·dy_j to dd.
__device__ __forceinline__ void MixOwn(const float (&scores)[8], const float (&products)[2][4],
                                       const HeadDecays& decays, const int* first_seen, int block,
                                       float (&pairs)[8], float (&row_sums)[2], float (&columns)[4],
                                       float& dd, float (&mixed)[2][4]) {
  const int row0 = block * kBlock + static_cast<int>(threadIdx.x % 32 / 4);
  const int col0 = block * kBlock + static_cast<int>(threadIdx.x % 4) * 2;
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
        const float product = products[half][row * 2 + e];
        const float m = seen ? Exp2((high - decays.high[j]) + (low - decays.low[j])) : 0.0f;
        const float pair = seen ? m * decays.delta[j] * product : 0.0f;
        mixed[half][row * 2 + e] = seen ? m * scores[at] : 0.0f;
        pairs[at] += pair;
        const float w = seen && i > j ? pair * scores[at] : 0.0f;
        row_sums[row] += w;
        column += w;
        if (i == j) dd += product;
      }
      columns[half * 2 + e] = column;
    }
  }
}

// Sums a block's column sums over the warp's rows: lane (r, q) then has those of column 8 (r / 4) +
// 2q + (r / 2) % 2, and stores it if r is even.
__device__ __forceinline__ void StoreColumnSums(const float (&column)[4], float* to) {
  const unsigned lane = threadIdx.x % 32;
  const bool high = lane & 16, odd = lane & 8;
  float first = high ? column[2] : column[0], second = high ? column[3] : column[1];
  first += FromLane(high ? column[0] : column[2], 16u);
  second += FromLane(high ? column[1] : column[3], 16u);
  float sum = odd ? second : first;
  sum += FromLane(odd ? first : second, 8u);
  sum += FromLane(sum, 4u);
  if ((lane & 4) == 0) to[(high ? 8 : 0) + lane % 4 * 2 + (odd ? 1 : 0)] = sum;
}

// Writes a lane's sums to global memory.
__device__ __forceinline__ void WriteInputSums(const ScanArgs& args, const InputSums& sums,
                                               int64_t chunk, int lane) {
  const int token = static_cast<int>(threadIdx.x);
  if (token >= kScanChunk) return;
  const int64_t index = chunk * args.lanes + lane;
  float* to = args.token_sums + index * (ScanTokenSums::kArrays * kScanChunk) + token;
  float before = 0;
  for (int b = 0; b <= token / kBlock; ++b) before += sums.columns[b][token];
  to[ScanTokenSums::kBalance * kScanChunk] = sums.balance[token] - before;
  to[ScanTokenSums::kDelta * kScanChunk] = sums.delta[token];
  if (token == 0) {
    float dd = 0;
    for (const float x : sums.dd) dd += x;
    args.head_sums[index].dd = dd;
  }
}

template <int kP, int kN>
__device__ __forceinline__ void RunInputs(const ScanArgs& args, int64_t chunk_index, int group) {
  using Layout = InputLayout<kP, kN>;
  constexpr int kThreads = 32 * kBlocks;
  unsigned char* memory = DynamicShared();
  const uint32_t shared = SharedAddress(memory);
  HeadDecays* decays = reinterpret_cast<HeadDecays*>(memory + Layout::kDecays);
  InputSums* all_sums = reinterpret_cast<InputSums*>(memory + Layout::kSums);
  int* first_seen = reinterpret_cast<int*>(memory + Layout::kFirst);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, quad = thread % 4;
  const ChunkPlace chunk = PlaceOfChunk(args, chunk_index);
  const ScanChunkInfo info = args.chunks[chunk.index];
  const int group_lanes = args.lanes / args.groups;
  const int lane_begin = group * group_lanes, lane_end = lane_begin + group_lanes;
  const uint16_t* xbc = Bf16(args.xbc) + chunk.row * args.xbc_stride;
  const uint16_t* dy = Bf16(args.dy) + chunk.row * args.dy_stride;
  const int block = warp < 4 ? warp : 11 - warp;
  const int row0 = block * kBlock + thread % 32 / 4;
  const uint32_t other_stage = shared + (group_lanes % 2) * Layout::kStage;

  const auto load_c = [&](uint32_t to) {
    LoadTile<kScanChunk, kN, kThreads>(to, xbc + CColumn(args, group), args.xbc_stride, 0,
                                       info.tokens, args.state, thread);
  };
  const auto load_lane = [&](int lane) {
    const int at = Opaque(thread);
    const LaneColumns columns = ColumnsOf(args, lane);
    const uint32_t to = shared + (lane - lane_begin) % 2 * Layout::kStage;
    LoadTile<kScanChunk, kP, kThreads>(to + Layout::kX, xbc + columns.col, args.xbc_stride, 0,
                                       info.tokens, columns.cols, at);
    LoadTile<kScanChunk, kP, kThreads>(to + Layout::kDy, dy + columns.col, args.dy_stride, 0,
                                       info.tokens, columns.cols, at);
    if (info.followed) {
      LoadTile<kP, kN, kThreads>(to + Layout::kG,
                                 Bf16(args.gradients) + StateOffset(args, chunk.index, lane), kN, 0,
                                 kP, kN, at);
    }
  };
  LoadTile<kScanChunk, kN, kThreads>(shared + Layout::kPairs, xbc + BColumn(args, group),
                                     args.xbc_stride, 0, info.tokens, args.state, thread);
  load_c(shared + Layout::kStage);
  CommitCopies();
  load_lane(lane_begin);
  CommitCopies();
  TokenDecays token;
  if (thread < kScanChunk) {
    first_seen[thread] = FirstSeen(args, chunk, info.tokens, thread);
    token.Fetch(DecaysOf(args, chunk.index, lane_begin / args.slices), thread);
    token.Publish(decays[0], thread);
  }
  WaitForCopyGroups<1>();
  __syncthreads();

  // C_i·B_j of the warp's rows j: blocks i from its own on.
  const int pairs_before = block * kBlocks - block * (block - 1) / 2;
  const PairTable scores(memory + Layout::kScores, pairs_before);
  const PairTable pairs(memory + Layout::kPairs, pairs_before);
  uint32_t b[kN / 16][4];
  LoadRows<kN>(b, shared + Layout::kPairs, block);
  __syncthreads();
  for (int k = 0; k < kBlocks - block; ++k) {
    float sum[2][4] = {};
    MultiplyRows<kN>(sum, b, shared + Layout::kStage, block + k);
    scores.Store(k, {sum[0][0], sum[0][1], sum[0][2], sum[0][3], sum[1][0], sum[1][1], sum[1][2],
                     sum[1][3]});
    pairs.Store(k, {});
  }

  float db[kN / 8][4] = {};
  const bool leaves = info.followed && (block + 1) * kBlock > info.last_doc;
  for (int lane = lane_begin; lane < lane_end; ++lane) {
    WaitForCopyGroups<0>();
    __syncthreads();
    if (lane > lane_begin) {
      WriteInputSums(args, all_sums[(lane - 1 - lane_begin) % 2], chunk.index, lane - 1);
    }
    if (lane + 1 < lane_end) {
      load_lane(lane + 1);
      if (thread < kScanChunk) {
        token.Fetch(DecaysOf(args, chunk.index, (lane + 1) / args.slices), thread);
      }
    } else {
      load_c(other_stage);
    }
    CommitCopies();
    const LaneColumns columns = ColumnsOf(args, lane);
    const HeadDecays& head = decays[(lane - lane_begin) % 2];
    InputSums& sums = all_sums[(lane - lane_begin) % 2];
    const uint32_t stage = shared + (lane - lane_begin) % 2 * Layout::kStage;
    const uint32_t dy_tile = stage + Layout::kDy, g_tile = stage + Layout::kG;
    const float d = __ldg(args.d + columns.head);
    reinterpret_cast<float4*>(sums.columns[block])[thread % 32] = make_float4(0, 0, 0, 0);
    SyncWarp();

    uint32_t x[kP / 16][4];
    LoadRows<kP>(x, stage + Layout::kX, block);
    const float until[2] = {head.until[row0], head.until[row0 + 8]};
    const float delta[2] = {head.delta[row0], head.delta[row0 + 8]};
    const float until_delta[2] = {until[0] * delta[0], until[1] * delta[1]};

    // From the state that leaves; without `until`.
    float du[kP / 8][4] = {};
    float balance[2] = {};
    float leave_delta[2] = {};
    if (leaves) {
#pragma unroll
      for (int n = 0; n < kN / 16; ++n) {
        MultiplyTransposedState<kP, kN>(du, b[n], g_tile, n);
      }
      const float after = head.OverBlocks(block + 1, kBlocks);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const bool here = row0 + row * 8 >= info.last_doc;
        float dot = 0;
#pragma unroll
        for (int p = 0; p < kP / 8; ++p) {
          const uint32_t in = x[p / 2][p % 2 * 2 + row];
          dot = fmaf(First(in), du[p][2 * row], dot);
          dot = fmaf(Second(in), du[p][2 * row + 1], dot);
          du[p][2 * row] = here ? du[p][2 * row] * after : 0.0f;
          du[p][2 * row + 1] = here ? du[p][2 * row + 1] * after : 0.0f;
        }
        leave_delta[row] = here ? until_delta[row] * after : 0.0f;
        dot = SumOfRow(dot);
        balance[row] = here ? dot * leave_delta[row] : 0.0f;
      }
    }

    // From later blocks of the chunk.
    PairSums pair_sums = {};
    float over = 1;
#pragma unroll 1
    for (int k = 1; k < kBlocks; ++k) {
      const int later = block + k;
      if (later >= kBlocks) break;
      const BlockDocuments documents = DocumentsOf(first_seen, later);
      if (documents.SeesNothingIn(block)) break;
      if (k > 1) over *= head.OverBlock(later - 1);
      float products[2][4] = {};
      MultiplyRows<kP>(products, x, dy_tile, later);
      const int col = later * kBlock + quad * 2;
      const float2 begin0 = *reinterpret_cast<const float2*>(head.begin + col);
      const float2 begin1 = *reinterpret_cast<const float2*>(head.begin + col + 8);
      const float col_factor[4] = {begin0.x * over, begin0.y * over, begin1.x * over,
                                   begin1.y * over};
      float block_scores[8], block_pairs[8], mixed[2][4];
      scores.Load(k, block_scores);
      pairs.Load(k, block_pairs);
      int first[4] = {};
      if (documents.SeesAllOf(block)) {
        MixLater<false>(block_scores, products, col_factor, until_delta, first, row0, block_pairs,
                        pair_sums, mixed);
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) first[e] = first_seen[col + e / 2 * 8 + e % 2];
        MixLater<true>(block_scores, products, col_factor, until_delta, first, row0, block_pairs,
                       pair_sums, mixed);
      }
      pairs.Store(k, block_pairs);
      StoreColumnSums(pair_sums.column, sums.columns[block] + later * kBlock);
      uint32_t left[4];
      RoundToLeft(mixed[0], mixed[1], left);
      MultiplyTokens<kP>(du, left, dy_tile, later);
    }
#pragma unroll
    for (int p = 0; p < kP / 8; ++p) {
#pragma unroll
      for (int e = 0; e < 4; ++e) du[p][e] *= until[e / 2];
    }
    float own_rows[2] = {};
    float dd = 0;
    {
      float products[2][4] = {};
      MultiplyRows<kP>(products, x, dy_tile, block);
      float block_scores[8], block_pairs[8], mixed[2][4], own_columns[4];
      scores.Load(0, block_scores);
      pairs.Load(0, block_pairs);
      MixOwn(block_scores, products, head, first_seen, block, block_pairs, own_rows, own_columns,
             dd, mixed);
      pairs.Store(0, block_pairs);
      StoreColumnSums(own_columns, sums.columns[block] + block * kBlock);
      uint32_t left[4];
      RoundToLeft(mixed[0], mixed[1], left);
      MultiplyTokens<kP>(du, left, dy_tile, block);
    }

    // dx takes the place of the warp's rows of x, which no other warp reads.
    const uint32_t own_dy = dy_tile + row0 * kPitch<kP> + quad * 4;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float x_du = 0;
#pragma unroll
      for (int p = 0; p < kP / 8; ++p) {
        const uint32_t in = x[p / 2][p % 2 * 2 + row];
        const uint32_t direct = LoadSharedWord(own_dy + row * (8 * kPitch<kP>)+p * 16);
        float& first = du[p][2 * row];
        float& second = du[p][2 * row + 1];
        x_du = fmaf(First(in), first, x_du);
        x_du = fmaf(Second(in), second, x_du);
        first = fmaf(first, delta[row], First(direct) * d);
        second = fmaf(second, delta[row], Second(direct) * d);
      }
      x_du = SumOfRow(x_du);
      const float w =
          SumOfRow(fmaf(pair_sums.row[row], until_delta[row], own_rows[row])) + balance[row];
      if (quad == 0) {
        sums.balance[row0 + row * 8] = w;
        sums.delta[row0 + row * 8] = x_du;
      }
    }
#pragma unroll
    for (unsigned mask = 1; mask < 32; mask *= 2) dd += FromLane(dd, mask);
    if (thread % 32 == 0) sums.dd[block] = dd;
    StoreSums<kP>(du, stage + Layout::kX + block * (kBlock * kPitch<kP>),
                  Bf16(args.dxbc) + (chunk.row + block * kBlock) * args.dxbc_stride + columns.col,
                  args.dxbc_stride, info.tokens - block * kBlock, columns.cols);

    if (leaves) {
#pragma unroll
      for (int p = 0; p < kP / 16; ++p) {
        uint32_t left[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float factor = leave_delta[e % 2];
          left[e] =
              factor == 0.0f ? 0u : Bf16Pair(First(x[p][e]) * factor, Second(x[p][e]) * factor);
        }
        MultiplyTokens<kN>(db, left, g_tile, p);
      }
    }
    if (thread < kScanChunk && lane + 1 < lane_end) {
      token.Publish(decays[(lane + 1 - lane_begin) % 2], thread);
    }
  }

  WaitForCopyGroups<0>();
  __syncthreads();
  WriteInputSums(args, all_sums[(group_lanes - 1) % 2], chunk.index, lane_end - 1);
  for (int k = 0; k < kBlocks - block; ++k) {
    float block_pairs[8];
    uint32_t left[4];
    pairs.Load(k, block_pairs);
    RoundToLeft(block_pairs, left);
    MultiplyTokens<kN>(db, left, other_stage, block + k);
  }
  // Rows of dB take the place of the last lane's tiles.
  StoreSums<kN>(
      db, shared + (group_lanes - 1) % 2 * Layout::kStage + block * (kBlock * kPitch<kN>),
      Bf16(args.dxbc) + (chunk.row + block * kBlock) * args.dxbc_stride + BColumn(args, group),
      args.dxbc_stride, info.tokens - block * kBlock, args.state);
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_BACKWARD_INPUTS_CUH_
