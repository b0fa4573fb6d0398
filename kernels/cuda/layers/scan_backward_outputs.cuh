// The half of the scan's backward pass whose rows are the tokens i that read the state: dC, and
// its contributions to the gradient of dt.
//
//   dC_i = Σ over lanes of Σ_{j≤i} K_ij B_j + enter_i Sᵀ dy_i,  K_ij = M_ij Δ_j (dy_i·x_j)
//   e_i  = enter_i dy_i·(S C_i);  carried = 2^s_last ⟨G, S⟩
//
// A thread block processes one chunk of a group, lane by lane; a warp has 16 tokens i. For all
// lanes it keeps C_i and dC in registers, and K, summed over the lanes, in FP32 in shared memory.
// Sᵀ dy_i is computed 32 columns at a time: its dot product with C_i gives e_i.
//
// Thread-safety: as device code.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_BACKWARD_OUTPUTS_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_BACKWARD_OUTPUTS_CUH_

#include "kernels/cuda/layers/scan_pairs.cuh"

namespace nibble::gpu::scan {

template <int kP, int kN>
struct OutputLayout {
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kDy = kX + kScanChunk * kPitch<kP>;
  static constexpr uint32_t kState = kDy + kScanChunk * kPitch<kP>;
  static constexpr uint32_t kG = kState + kP * kPitch<kN>;
  static constexpr uint32_t kStage = kG + kP * kPitch<kN>;
  static constexpr uint32_t kDecays = 2 * kStage;
  static constexpr uint32_t kCarried = kDecays + 2 * sizeof(HeadDecays);
  static constexpr uint32_t kFirst = kCarried + 2 * kBlocks * sizeof(float);
  static constexpr uint32_t kPairs = kFirst + kScanChunk * sizeof(int);
  static constexpr uint32_t kBytes = kPairs + kAllPairBytes;
  static_assert(kScanChunk * kPitch<kN> <= kStage);
};

// pairs += M_ij Δ_j products of a block of tokens j before the warp's own.
template <bool kMasked>
__device__ __forceinline__ void AddEarlier(const float (&products)[2][4], const HeadDecays& decays,
                                           int block, const Rows& rows, float over,
                                           float (&pairs)[8]) {
  const int col = block * kBlock + static_cast<int>(threadIdx.x % 4) * 2;
  const float row_factor[2] = {rows.begin[0] * over, rows.begin[1] * over};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = col + half * 8;
    const float2 until = *reinterpret_cast<const float2*>(decays.until + at);
    const float2 delta = *reinterpret_cast<const float2*>(decays.delta + at);
    const float col_factor[2] = {until.x * delta.x, until.y * delta.y};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float product = products[half][e];
      if (kMasked && at + e % 2 < rows.first[e / 2]) product = 0;
      float& pair = pairs[half * 4 + e];
      pair = fmaf(row_factor[e / 2] * col_factor[e % 2], product, pair);
    }
  }
}

// The same for the warp's own block.
__device__ __forceinline__ void AddOwn(const float (&products)[2][4], const HeadDecays& decays,
                                       int block, const Rows& rows, float (&pairs)[8]) {
  const int row0 = block * kBlock + static_cast<int>(threadIdx.x % 32 / 4);
  const int col0 = block * kBlock + static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int i = row0 + e / 2 * 8, j = col0 + half * 8 + e % 2;
      const bool seen = j <= i && j >= rows.first[e / 2];
      const float m = Exp2((decays.high[i] - decays.high[j]) + (decays.low[i] - decays.low[j]));
      if (seen)
        pairs[half * 4 + e] = fmaf(m * decays.delta[j], products[half][e], pairs[half * 4 + e]);
    }
  }
}

// This thread's part of ⟨a, b⟩ of two tiles [kP, kN].
template <int kP, int kN, int kThreads>
__device__ __forceinline__ float DotOfTiles(uint32_t a, uint32_t b) {
  constexpr int kPieces = kN / 8;
  const int thread = Opaque(static_cast<int>(threadIdx.x));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < (kP * kPieces + kThreads - 1) / kThreads; ++i) {
    const int at = i * kThreads + thread;
    if (kP * kPieces % kThreads != 0 && at >= kP * kPieces) break;
    const uint32_t offset = at / kPieces * kPitch<kN> + at % kPieces * 16;
    const uint4 x = LoadShared16(a + offset), y = LoadShared16(b + offset);
    const uint32_t left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      sum = fmaf(First(left[e]), First(right[e]), sum);
      sum = fmaf(Second(left[e]), Second(right[e]), sum);
    }
  }
  return sum;
}

template <int kP, int kN>
__device__ __forceinline__ void RunOutputs(const ScanArgs& args, int64_t chunk_index, int group) {
  using Layout = OutputLayout<kP, kN>;
  constexpr int kThreads = 32 * kBlocks;
  unsigned char* memory = DynamicShared();
  const uint32_t shared = SharedAddress(memory);
  HeadDecays* decays = reinterpret_cast<HeadDecays*>(memory + Layout::kDecays);
  float* carried = reinterpret_cast<float*>(memory + Layout::kCarried);
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
  const bool carries = info.followed && info.entering == info.tokens;

  const auto load_group = [&](uint32_t to, int64_t column) {
    LoadTile<kScanChunk, kN, kThreads>(to, xbc + column, args.xbc_stride, 0, info.tokens,
                                       args.state, thread);
  };
  const auto load_lane = [&](int lane) {
    const int at = Opaque(thread);
    const LaneColumns columns = ColumnsOf(args, lane);
    const uint32_t to = shared + (lane - lane_begin) % 2 * Layout::kStage;
    LoadTile<kScanChunk, kP, kThreads>(to + Layout::kX, xbc + columns.col, args.xbc_stride, 0,
                                       info.tokens, columns.cols, at);
    LoadTile<kScanChunk, kP, kThreads>(to + Layout::kDy, dy + columns.col, args.dy_stride, 0,
                                       info.tokens, columns.cols, at);
    const int64_t state = StateOffset(args, chunk.index, lane);
    if (info.entering > 0) {
      LoadTile<kP, kN, kThreads>(to + Layout::kState, Bf16(args.states) + state, kN, 0, kP, kN, at);
    }
    if (carries) {
      LoadTile<kP, kN, kThreads>(to + Layout::kG, Bf16(args.gradients) + state, kN, 0, kP, kN, at);
    }
  };
  // Once all warps have finished a lane.
  const auto write_carried = [&](int lane) {
    if (thread != 0) return;
    const float* parts = carried + (lane - lane_begin) % 2 * kBlocks;
    float dot = 0;
    for (int w = 0; w < kBlocks; ++w) dot += parts[w];
    const float over_chunk = DecaysOf(
        args, chunk.index, lane / args.slices)[ScanDecays::kEnter * kScanChunk + kScanChunk - 1];
    args.head_sums[chunk.index * args.lanes + lane].carried = carries ? over_chunk * dot : 0.0f;
  };
  load_group(shared + Layout::kStage, CColumn(args, group));
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

  uint32_t c[kN / 16][4];
  LoadRows<kN>(c, shared + Layout::kStage, block);
  Rows rows = RowsOf(first_seen, row0);
  const BlockDocuments documents = DocumentsOf(first_seen, block);
  // [k]: the k-th block before the warp's own.
  const PairTable pairs(memory + Layout::kPairs, block * (block + 1) / 2);
  for (int k = 0; k <= block; ++k) pairs.Store(k, {});
  float dc[kN / 8][4] = {};
  const bool enters = block * kBlock < info.entering;
  for (int lane = lane_begin; lane < lane_end; ++lane) {
    WaitForCopyGroups<0>();
    __syncthreads();
    if (lane > lane_begin) write_carried(lane - 1);
    if (lane + 1 < lane_end) {
      load_lane(lane + 1);
      if (thread < kScanChunk) {
        token.Fetch(DecaysOf(args, chunk.index, (lane + 1) / args.slices), thread);
      }
    } else {
      load_group(other_stage, BColumn(args, group));
    }
    CommitCopies();
    const HeadDecays& head = decays[(lane - lane_begin) % 2];
    const uint32_t stage = shared + (lane - lane_begin) % 2 * Layout::kStage;
    const uint32_t x_tile = stage + Layout::kX, state_tile = stage + Layout::kState;
    uint32_t dy_rows[kP / 16][4];
    LoadRows<kP>(dy_rows, stage + Layout::kDy, block);
    rows.begin[0] = head.begin[row0];
    rows.begin[1] = head.begin[row0 + 8];

    {
      float products[2][4] = {};
      MultiplyRows<kP>(products, dy_rows, x_tile, block);
      float block_pairs[8];
      pairs.Load(0, block_pairs);
      AddOwn(products, head, block, rows, block_pairs);
      pairs.Store(0, block_pairs);
    }
    float over = 1;
#pragma unroll 1
    for (int k = 1; k < kBlocks; ++k) {
      const int before = block - k;
      if (before < 0 || documents.SeesNothingIn(before)) break;
      if (k > 1) over *= head.OverBlock(before + 1);
      float products[2][4] = {};
      MultiplyRows<kP>(products, dy_rows, x_tile, before);
      float block_pairs[8];
      pairs.Load(k, block_pairs);
      if (documents.SeesAllOf(before)) {
        AddEarlier<false>(products, head, before, rows, over, block_pairs);
      } else {
        AddEarlier<true>(products, head, before, rows, over, block_pairs);
      }
      pairs.Store(k, block_pairs);
    }

    float entered[2] = {};
    if (enters) {
      const float earlier = head.OverBlocks(0, block);
      bool here[2];
      float enter[2];
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        here[row] = row0 + row * 8 < info.entering;
        enter[row] = rows.begin[row] * earlier;
      }
#pragma unroll
      for (int n = 0; n < kN / 32; ++n) {
        float part[4][4] = {};
#pragma unroll
        for (int p = 0; p < kP / 16; ++p) {
          const uint32_t from =
              state_tile + p * (kBlock * kPitch<kN>)+LaneOffsetA(kPitch<kN>) + n * 64;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            uint32_t right[4];
            LoadMatricesTransposed(right, from + half * 32);
            MultiplyAdd(part[2 * half], dy_rows[p], right[0], right[1]);
            MultiplyAdd(part[2 * half + 1], dy_rows[p], right[2], right[3]);
          }
        }
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            const uint32_t in = c[2 * n + t / 2][t % 2 * 2 + row];
            const float first = part[t][2 * row], second = part[t][2 * row + 1];
            entered[row] = fmaf(First(in), first, entered[row]);
            entered[row] = fmaf(Second(in), second, entered[row]);
            float* to = dc[4 * n + t] + 2 * row;
            if (here[row]) {
              to[0] = fmaf(enter[row], first, to[0]);
              to[1] = fmaf(enter[row], second, to[1]);
            }
          }
        }
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float sum = SumOfRow(entered[row]) * enter[row];
        entered[row] = here[row] ? sum : 0.0f;
      }
    }
    if (quad == 0) {
      float* to =
          args.token_sums +
          ((chunk.index * args.lanes + lane) * ScanTokenSums::kArrays + ScanTokenSums::kEntered) *
              kScanChunk +
          row0;
      to[0] = entered[0];
      to[8] = entered[1];
    }
    if (carries) {
      float dot = DotOfTiles<kP, kN, kThreads>(state_tile, stage + Layout::kG);
#pragma unroll
      for (unsigned mask = 1; mask < 32; mask *= 2) dot += FromLane(dot, mask);
      if (thread % 32 == 0) carried[(lane - lane_begin) % 2 * kBlocks + warp] = dot;
    }
    if (thread < kScanChunk && lane + 1 < lane_end) {
      token.Publish(decays[(lane + 1 - lane_begin) % 2], thread);
    }
  }

  WaitForCopyGroups<0>();
  __syncthreads();
  write_carried(lane_end - 1);
  for (int k = 0; k <= block; ++k) {
    float block_pairs[8];
    uint32_t left[4];
    pairs.Load(k, block_pairs);
    RoundToLeft(block_pairs, left);
    MultiplyTokens<kN>(dc, left, other_stage, block - k);
  }
  // Rows of dC take the place of the last lane's tiles.
  StoreSums<kN>(
      dc, shared + (group_lanes - 1) % 2 * Layout::kStage + block * (kBlock * kPitch<kN>),
      Bf16(args.dxbc) + (chunk.row + block * kBlock) * args.dxbc_stride + CColumn(args, group),
      args.dxbc_stride, info.tokens - block * kBlock, args.state);
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_BACKWARD_OUTPUTS_CUH_
