// The scan's outputs, given the states that enter the chunks:
//
//   y_i = Σ_{j≤i} M_ij (C_i·B_j) Δ_j x_j + 2^s_i S C_i + D x_i
//
// A thread block processes one chunk of a group, lane by lane, or two lanes at once by eight warps
// each if shared memory holds their tiles: then registers for twice the warps remain, which hide
// the matmuls' latency. A warp has 16 tokens i and keeps their C_i (BF16) in registers; C_i·B_j
// (FP32), computed once for all lanes, are in shared memory, where the warps of both lanes read
// them. For a lane, C_i·Sᵀ fills an accumulator, which is scaled by 2^s_i; then, block by block of
// 16 tokens j, M_ij Δ_j (C_i·B_j) is rounded to BF16 in registers, where it is a left fragment, and
// multiplied with x.
//
// Traffic: per chunk and lane, at 64 columns and state 128, 16 KB each of x and S are read and 16
// KB of y written: the limit at 128 lanes and 16,384 tokens is 0.21 ms of a memory that copies 4.26
// TB/s. The matmuls need half of that on mma.sync. The tiles of the next lanes arrive while those
// of these are used.
#include "kernels/cuda/layers/scan_pairs.cuh"

namespace nibble::gpu {
namespace {

using namespace scan;

// kSides: how many lanes are processed at once.
template <int kSides>
inline constexpr int kThreadsOf = 32 * kBlocks* kSides;
template <int kP, int kN, int kSides>
struct ForwardLayout {
  static constexpr int kStages = 2 * kSides;
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kState = kX + kScanChunk * kPitch<kP>;
  static constexpr uint32_t kStage = kState + kP * kPitch<kN>;
  // The last stages have C and B at the beginning.
  static constexpr uint32_t kC = kSides * kStage;
  static constexpr uint32_t kB = kC + kScanChunk * kPitch<kN>;
  static constexpr uint32_t kScores = (kB + kScanChunk * kPitch<kN>) > kStages* kStage
                                          ? kB + kScanChunk* kPitch<kN>
                                          : kStages* kStage;
  // The rows of y on their way to global memory.
  static constexpr uint32_t kOut = kScores + kAllPairBytes;
  static constexpr uint32_t kDecays = kOut + kSides * kScanChunk * kPitch<kP>;
  static constexpr uint32_t kFirst = kDecays + kStages * sizeof(HeadDecays);
  static constexpr uint32_t kBytes = kFirst + kScanChunk * sizeof(int);
};
inline constexpr uint32_t kMostShared = 227 << 10;
template <int kP, int kN>
inline constexpr int kSidesOf = ForwardLayout<kP, kN, 2>::kBytes <= kMostShared ? 2 : 1;

template <int kP, int kN>
__global__ __launch_bounds__(kThreadsOf<kSidesOf<kP, kN>>,
                             1) void ForwardKernel(const __grid_constant__ ScanArgs args,
                                                   int parts) {
  constexpr int kSides = kSidesOf<kP, kN>;
  using Layout = ForwardLayout<kP, kN, kSides>;
  constexpr int kThreads = kThreadsOf<kSides>;
  constexpr int kSideThreads = 32 * kBlocks;
  unsigned char* memory = DynamicShared();
  const uint32_t shared = SharedAddress(memory);
  HeadDecays* decays = reinterpret_cast<HeadDecays*>(memory + Layout::kDecays);
  int* first_seen = reinterpret_cast<int*>(memory + Layout::kFirst);
  const int side = static_cast<int>(threadIdx.x / kSideThreads);
  const int thread = static_cast<int>(threadIdx.x % kSideThreads);
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

  // A side's lanes are lane_begin + side, and every kSides-th from there; its tiles and exponents
  // alternate between two places.
  const auto place = [&](int turn) { return turn % 2 * kSides + side; };
  const auto load_lane = [&](int lane, int turn) {
    if (lane < lane_end) {
      const int at = Opaque(thread);
      const LaneColumns columns = ColumnsOf(args, lane);
      const uint32_t to = shared + place(turn) * Layout::kStage;
      LoadTile<kScanChunk, kP, kSideThreads>(to + Layout::kX, xbc + columns.col, args.xbc_stride, 0,
                                             info.tokens, columns.cols, at);
      if (info.entering > 0) {
        LoadTile<kP, kN, kSideThreads>(to + Layout::kState,
                                       Bf16(args.states) + StateOffset(args, chunk.index, lane), kN,
                                       0, kP, kN, at);
      }
    }
    CommitCopies();
  };
  LoadTile<kScanChunk, kN, kThreads>(shared + Layout::kC, xbc + CColumn(args, group),
                                     args.xbc_stride, 0, info.tokens, args.state,
                                     static_cast<int>(threadIdx.x));
  LoadTile<kScanChunk, kN, kThreads>(shared + Layout::kB, xbc + BColumn(args, group),
                                     args.xbc_stride, 0, info.tokens, args.state,
                                     static_cast<int>(threadIdx.x));
  CommitCopies();
  int lane = lane_begin + side;
  load_lane(lane, 0);
  TokenDecays token;
  if (thread < kScanChunk) {
    if (side == 0) first_seen[thread] = FirstSeen(args, chunk, info.tokens, thread);
    if (lane < lane_end) {
      token.Fetch(DecaysOf(args, chunk.index, lane / args.slices), thread);
      token.Publish(decays[place(0)], thread);
    }
  }
  WaitForCopyGroups<1>();
  __syncthreads();

  // C_i of the warp's rows, and C_i·B_j: [0] of its own block, [k] of the k-th one before it. The
  // sides share these scores.
  uint32_t c[kN / 16][4];
  LoadRows<kN>(c, shared + Layout::kC, block);
  const PairTable scores(memory + Layout::kScores, block * (block + 1) / 2);
  for (int k = side; k <= block; k += kSides) {
    float sum[2][4] = {};
    MultiplyRows<kN>(sum, c, shared + Layout::kB, block - k);
    scores.Store(k, {sum[0][0], sum[0][1], sum[0][2], sum[0][3], sum[1][0], sum[1][1], sum[1][2],
                     sum[1][3]});
  }
  Rows rows = RowsOf(first_seen, row0);
  const BlockDocuments documents = DocumentsOf(first_seen, block);
  const bool enters = block * kBlock < info.entering;
  const uint32_t out = shared + Layout::kOut + (side * kScanChunk + block * kBlock) * kPitch<kP>;

  const int turns = (lane_end - lane_begin + kSides - 1) / kSides;
  for (int turn = 0; turn < turns; ++turn, lane += kSides) {
    WaitForCopyGroups<0>();
    __syncthreads();
    load_lane(lane + kSides, turn + 1);
    if (lane >= lane_end) continue;  // the other side's last lane
    if (thread < kScanChunk && lane + kSides < lane_end) {
      token.Fetch(DecaysOf(args, chunk.index, (lane + kSides) / args.slices), thread);
    }
    const LaneColumns columns = ColumnsOf(args, lane);
    const HeadDecays& head = decays[place(turn)];
    const uint32_t stage = shared + place(turn) * Layout::kStage;
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
    float block_scores[8];
    scores.Load(0, block_scores);
    MixOwnBlock(block_scores, head, block, rows, left);
    MultiplyTokens<kP>(sum, left, x, block);
    float over = 1;
#pragma unroll 1
    for (int k = 1; k <= block; ++k) {
      const int before = block - k;
      // Documents begin in order: no block before one that is not seen is seen.
      if (documents.SeesNothingIn(before)) break;
      if (k > 1) over *= head.OverBlock(before + 1);
      scores.Load(k, block_scores);
      if (documents.SeesAllOf(before)) {
        MixBlock<false>(block_scores, head, before, rows, over, left);
      } else {
        MixBlock<true>(block_scores, head, before, rows, over, left);
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
    if (thread < kScanChunk && lane + kSides < lane_end) {
      token.Publish(decays[place(turn + 1)], thread);
    }
  }
  WaitForCopyGroups<0>();
}

template <int kP, int kN>
cudaError_t LaunchForward(const ScanArgs& args, cudaStream_t stream) {
  const auto kernel = ForwardKernel<kP, kN>;
  using Layout = ForwardLayout<kP, kN, kSidesOf<kP, kN>>;
  constexpr int kBytes = Layout::kBytes;
  static_assert(kBytes <= kMostShared);
  const int64_t blocks = args.chunk_count() * args.groups;
  const int parts = LanesInParts(blocks, args.lanes / args.groups);
  return Launch(kernel, dim3(static_cast<unsigned>(blocks * parts)), kThreadsOf<kSidesOf<kP, kN>>,
                kBytes, stream, args, parts);
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
