// The scan's outputs, given the states that enter the chunks:
//
//   y_i = Σ_{j≤i} M_ij (C_i·B_j) Δ_j x_j + 2^s_i S C_i + D x_i
//
// A thread block processes one chunk of a group, lane by lane. A warp has 16 tokens i: it computes
// their C_i·B_j once, for all lanes, and keeps them in registers (FP32), as it keeps C_i (BF16).
// For a lane, C_i·Sᵀ fills an accumulator, which is scaled by 2^s_i; then, block by block of 16
// tokens j, M_ij Δ_j (C_i·B_j) is rounded to BF16 in registers, where it is a left fragment, and
// multiplied with x.
//
// Traffic: per chunk and lane, at 64 columns and state 128, 16 KB each of x and S are read and 16
// KB of y written: the limit at 128 lanes and 16,384 tokens is 0.21 ms of a memory that copies 4.26
// TB/s. The products need half of that on mma.sync. Up to three lanes' tiles are in shared memory:
// one is used while the next two arrive.
#include "kernels/cuda/layers/scan_pairs.cuh"

namespace nibble::gpu {
namespace {

using namespace scan;

constexpr int kThreads = 32 * kBlocks;

template <int kP, int kN>
struct ForwardLayout {
  static constexpr int kStages = 3;
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kState = kX + kScanChunk * kPitch<kP>;
  static constexpr uint32_t kStage = kState + kP * kPitch<kN>;
  // C and B at the beginning, then the rows of y on their way to global memory.
  static constexpr uint32_t kC = kStages * kStage;
  static constexpr uint32_t kB = kC + kScanChunk * kPitch<kN>;
  static constexpr uint32_t kOut = kC;
  static constexpr uint32_t kDecays = kB + kScanChunk * kPitch<kN>;
  static constexpr uint32_t kFirst = kDecays + 2 * sizeof(HeadDecays);
  static constexpr uint32_t kBytes = kFirst + kScanChunk * sizeof(int);
  static_assert(kBlocks * kBlock * kPitch<kP> <= 2 * kScanChunk * kPitch<kN>);
};

// M_ij Δ_j (C_i·B_j) of a block before the warp's own, as a left fragment. over: the decay over the
// blocks between the two. kMasked: rows depend only on tokens from rows.first on.
template <bool kMasked>
__device__ __forceinline__ void MixBlock(const float (&scores)[8], const HeadDecays& decays,
                                         int block, const Rows& rows, float over,
                                         uint32_t (&left)[4]) {
  const int col = block * kBlock + static_cast<int>(threadIdx.x % 4) * 2;
  const float row_factor[2] = {rows.begin[0] * over, rows.begin[1] * over};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = col + half * 8;
    const float2 until = *reinterpret_cast<const float2*>(decays.until + at);
    const float2 delta = *reinterpret_cast<const float2*>(decays.delta + at);
    const float col_factor[2] = {until.x * delta.x, until.y * delta.y};
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      float mixed[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        mixed[e] = scores[half * 4 + row * 2 + e] * col_factor[e] * row_factor[row];
        if (kMasked && at + e < rows.first[row]) mixed[e] = 0.0f;
      }
      left[half * 2 + row] = Bf16Pair(mixed[0], mixed[1]);
    }
  }
}

// The same of the warp's own block.
__device__ __forceinline__ void MixOwnBlock(const float (&scores)[8], const HeadDecays& decays,
                                            int block, const Rows& rows, uint32_t (&left)[4]) {
  const int row0 = block * kBlock + static_cast<int>(threadIdx.x % 32 / 4);
  const int col = block * kBlock + static_cast<int>(threadIdx.x % 4) * 2;
  const float high[2] = {decays.high[row0], decays.high[row0 + 8]};
  const float low[2] = {decays.low[row0], decays.low[row0 + 8]};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int at = col + half * 8;
    const float2 col_high = *reinterpret_cast<const float2*>(decays.high + at);
    const float2 col_low = *reinterpret_cast<const float2*>(decays.low + at);
    const float2 delta = *reinterpret_cast<const float2*>(decays.delta + at);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int i = row0 + row * 8;
      const float* score = scores + half * 4 + row * 2;
      const float m0 = Exp2((high[row] - col_high.x) + (low[row] - col_low.x)) * delta.x;
      const float m1 = Exp2((high[row] - col_high.y) + (low[row] - col_low.y)) * delta.y;
      const bool seen0 = at <= i && at >= rows.first[row];
      const bool seen1 = at + 1 <= i && at + 1 >= rows.first[row];
      left[half * 2 + row] = Bf16Pair(seen0 ? m0 * score[0] : 0.0f, seen1 ? m1 * score[1] : 0.0f);
    }
  }
}

template <int kP, int kN>
__global__ __launch_bounds__(kThreads, 1) void ForwardKernel(const __grid_constant__ ScanArgs args,
                                                             int parts) {
  using Layout = ForwardLayout<kP, kN>;
  unsigned char* memory = DynamicShared();
  const uint32_t shared = SharedAddress(memory);
  HeadDecays* decays = reinterpret_cast<HeadDecays*>(memory + Layout::kDecays);
  int* first_seen = reinterpret_cast<int*>(memory + Layout::kFirst);
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, row_in_block = thread % 32 / 4, quad = thread % 4;

  const int part = static_cast<int>(blockIdx.x % parts);
  const int group = static_cast<int>(blockIdx.x / parts % args.groups);
  const ChunkPlace chunk = PlaceOfChunk(args, blockIdx.x / parts / args.groups);
  const ScanChunkInfo info = args.chunks[chunk.index];
  const int group_lanes = args.lanes / args.groups;
  const int lane_begin =
      group * group_lanes + static_cast<int>(int64_t{group_lanes} * part / parts);
  const int lane_end =
      group * group_lanes + static_cast<int>(int64_t{group_lanes} * (part + 1) / parts);
  const uint16_t* xbc = Bf16(args.xbc) + chunk.row * args.xbc_stride;

  // Warps w and w + 4 share a scheduler: a block with little work and one with much.
  const int block = warp < 4 ? warp : 11 - warp;
  const int row0 = block * kBlock + row_in_block;

  const auto load_lane = [&](int lane) {
    if (lane < lane_end) {
      const LaneColumns columns = ColumnsOf(args, lane);
      const uint32_t to = shared + (lane - lane_begin) % Layout::kStages * Layout::kStage;
      LoadTile<kScanChunk, kP, kThreads>(to + Layout::kX, xbc + columns.col, args.xbc_stride, 0,
                                         info.tokens, columns.cols, thread);
      if (info.entering > 0) {
        LoadTile<kP, kN, kThreads>(to + Layout::kState,
                                   Bf16(args.states) + StateOffset(args, chunk.index, lane), kN, 0,
                                   kP, kN, thread);
      }
    }
    CommitCopies();
  };
  LoadTile<kScanChunk, kN, kThreads>(shared + Layout::kC, xbc + CColumn(args, group),
                                     args.xbc_stride, 0, info.tokens, args.state, thread);
  LoadTile<kScanChunk, kN, kThreads>(shared + Layout::kB, xbc + BColumn(args, group),
                                     args.xbc_stride, 0, info.tokens, args.state, thread);
  CommitCopies();
  load_lane(lane_begin);
  load_lane(lane_begin + 1);
  TokenDecays token;
  if (thread < kScanChunk) {
    first_seen[thread] = FirstSeen(args, chunk, info.tokens, thread);
    token.Fetch(DecaysOf(args, chunk.index, lane_begin / args.slices));
    token.Publish(decays[0]);
  }
  WaitForCopyGroups<2>();
  __syncthreads();

  // C_i of the warp's rows, and C_i·B_j: [0] of its own block, [k] of the k-th one before it.
  uint32_t c[kN / 16][4];
  LoadRows<kN>(c, shared + Layout::kC, block);
  float scores[kBlocks][8];
#pragma unroll
  for (int k = 0; k < kBlocks; ++k) {
    float sum[2][4] = {};
    if (k <= block) MultiplyRows<kN>(sum, c, shared + Layout::kB, block - k);
#pragma unroll
    for (int e = 0; e < 8; ++e) scores[k][e] = sum[e / 4][e % 4];
  }
  Rows rows = RowsOf(first_seen, row0);
  const BlockDocuments documents = DocumentsOf(first_seen, block);
  const bool enters = block * kBlock < info.entering;
  const uint32_t out = shared + Layout::kOut + block * (kBlock * kPitch<kP>);

  for (int lane = lane_begin; lane < lane_end; ++lane) {
    WaitForCopyGroups<1>();
    __syncthreads();
    load_lane(lane + 2);
    if (thread < kScanChunk && lane + 1 < lane_end) {
      token.Fetch(DecaysOf(args, chunk.index, (lane + 1) / args.slices));
    }
    const LaneColumns columns = ColumnsOf(args, lane);
    const HeadDecays& head = decays[(lane - lane_begin) % 2];
    const uint32_t stage = shared + (lane - lane_begin) % Layout::kStages * Layout::kStage;
    const uint32_t x = stage + Layout::kX;
    const float d = __ldg(args.d + columns.head);
    rows.begin[0] = head.begin[row0];
    rows.begin[1] = head.begin[row0 + 8];

    float sum[kP / 8][4] = {};
    if (enters) {
#pragma unroll
      for (int n = 0; n < kN / 16; ++n) {
        MultiplyTransposedState<kP, kN>(sum, c[n], stage + Layout::kState, n);
      }
      const float before = head.OverBlocks(0, block);
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const bool here = row0 + row * 8 < info.entering;
        const float factor = rows.begin[row] * before;
#pragma unroll
        for (int p = 0; p < kP / 8; ++p) {
          sum[p][2 * row] = here ? sum[p][2 * row] * factor : 0.0f;
          sum[p][2 * row + 1] = here ? sum[p][2 * row + 1] * factor : 0.0f;
        }
      }
    }
    uint32_t left[4];
    MixOwnBlock(scores[0], head, block, rows, left);
    MultiplyTokens<kP>(sum, left, x, block);
    float over = 1;
#pragma unroll
    for (int k = 1; k < kBlocks; ++k) {
      const int before = block - k;
      // Documents begin in order: no block before one that is not seen is seen.
      if (before < 0 || documents.SeesNothingIn(before)) break;
      if (k > 1) over *= head.OverBlock(before + 1);
      if (documents.SeesAllOf(before)) {
        MixBlock<false>(scores[k], head, before, rows, over, left);
      } else {
        MixBlock<true>(scores[k], head, before, rows, over, left);
      }
      MultiplyTokens<kP>(sum, left, x, before);
    }

    const uint32_t own = x + row0 * kPitch<kP> + quad * 4;
#pragma unroll
    for (int p = 0; p < kP / 8; ++p) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const uint32_t in = LoadSharedWord(own + row * (8 * kPitch<kP>)+p * 16);
        sum[p][2 * row] = fmaf(d, First(in), sum[p][2 * row]);
        sum[p][2 * row + 1] = fmaf(d, Second(in), sum[p][2 * row + 1]);
      }
    }
    StoreSums<kP>(sum, out,
                  Bf16(args.y) + (chunk.row + block * kBlock) * args.y_stride + columns.col,
                  args.y_stride, info.tokens - block * kBlock, columns.cols);
    if (thread < kScanChunk && lane + 1 < lane_end) {
      token.Publish(decays[(lane + 1 - lane_begin) % 2]);
    }
  }
  WaitForCopyGroups<0>();
}

template <int kP, int kN>
cudaError_t LaunchForward(const ScanArgs& args, cudaStream_t stream) {
  const auto kernel = ForwardKernel<kP, kN>;
  constexpr int kBytes = ForwardLayout<kP, kN>::kBytes;
  if (const cudaError_t error =
          cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                               cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
      error != cudaSuccess) {
    return error;
  }
  // Few chunks and groups: several thread blocks share a group's lanes, at least four each.
  constexpr int64_t kEnough = 256;
  const int64_t blocks = args.chunk_count() * args.groups;
  const int64_t group_lanes = args.lanes / args.groups;
  int64_t parts = (kEnough + blocks - 1) / blocks;
  if (parts > group_lanes / 4) parts = group_lanes / 4;
  if (blocks >= kEnough / 2 || parts < 1) parts = 1;
  return Launch(kernel, dim3(static_cast<unsigned>(blocks * parts)), kThreads, kBytes, stream, args,
                static_cast<int>(parts));
}

}  // namespace

cudaError_t LaunchScanForward(const ScanArgs& args, cudaStream_t stream) {
  if (args.tile_state == 64) {
    return args.tile_cols == 32 ? LaunchForward<32, 64>(args, stream)
                                : LaunchForward<64, 64>(args, stream);
  }
  return args.tile_cols == 64 ? LaunchForward<64, 128>(args, stream)
                              : LaunchForward<80, 128>(args, stream);
}

}  // namespace nibble::gpu
