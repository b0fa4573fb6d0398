// The scan's outputs (scan_forward_kernels.cu) on Hopper:
//
//   y_i = Σ_{j≤i} M_ij (C_i·B_j) Δ_j x_j + 2^s_i S C_i + D x_i
//
// A thread block processes one chunk of a group, lane by lane. Three warpgroups have the quadrants
// [64 tokens i, 64 tokens j] that hold pairs j ≤ i, the third the one off the diagonal, and keep
// their C_i·B_j in registers for all lanes. For a lane, C·Sᵀ fills an accumulator while M_ij Δ_j
// (C_i·B_j) is rounded to BF16 in registers, and x is multiplied on top. The third warpgroup's part
// of y goes through shared memory to the second, which has the same rows.
//
// Traffic: per chunk and lane 16 KB each of x and S are read and 16 KB of y written: at 64 lanes
// and 16,384 tokens 0.4 GB, 0.095 ms of a memory that copies 4.26 TB/s. The products take half of
// that. The tiles of the next three lanes arrive while those of one are used.
#include "kernels/cuda/layers/scan_hopper.cuh"

namespace nibble::gpu {
namespace scan {
namespace {

constexpr int kOutputThreads = kQuadrants * kWarpgroup;
constexpr int kEarlierBarrier = 1;  // the third warpgroup's part of y is there

struct OutputsLayout {
  static constexpr int kStages = 4;
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kS = kX + TokenTile::kBytes;
  static constexpr uint32_t kStage = kS + StateTile::kBytes;
  static constexpr uint32_t kC = kStages * kStage;
  // y on its way to global memory.
  static constexpr uint32_t kOut = kC + TokenStateTile::kBytes;
  // The third warpgroup's y, four accumulators of all threads after the other.
  static constexpr uint32_t kEarlier = kOut + TokenTile::kBytes;
  static constexpr uint32_t kDecays = kEarlier + kHalf * kColumns * sizeof(float);
  static constexpr uint32_t kFirst = kDecays + 2 * sizeof(HeadDecays);
  static constexpr uint32_t kBytes = kFirst + kScanChunk * sizeof(int);
  static_assert(kBytes <= 227 << 10);
  static_assert(TokenStateTile::kBytes <= kStage);  // B at the beginning, in the last stage
};

__global__ __launch_bounds__(kOutputThreads,
                             1) void OutputsKernel(const __grid_constant__ ScanArgs args,
                                                   int parts) {
  using Layout = OutputsLayout;
  unsigned char* memory = DynamicShared();
  const uint32_t shared = SharedAddress(memory);
  HeadDecays* decays = reinterpret_cast<HeadDecays*>(memory + Layout::kDecays);
  int* first_seen = reinterpret_cast<int*>(memory + Layout::kFirst);
  const int warpgroup = static_cast<int>(threadIdx.x / kWarpgroup);
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  const int part = static_cast<int>(blockIdx.x % parts);
  const int group = static_cast<int>(blockIdx.x / parts % args.groups);
  const ChunkPlace chunk = PlaceOfChunk(args, blockIdx.x / parts / args.groups);
  const ScanChunkInfo info = args.chunks[chunk.index];
  const int group_lanes = args.lanes / args.groups;
  const int lane_begin =
      group * group_lanes + static_cast<int>(int64_t{group_lanes} * part / parts);
  const int lanes = group * group_lanes +
                    static_cast<int>(int64_t{group_lanes} * (part + 1) / parts) - lane_begin;
  const uint16_t* xbc = Bf16(args.xbc) + chunk.row * args.xbc_stride;
  // The quadrant's halves of the tokens i and j; the warp's block of i.
  const int row_half = warpgroup == 0 ? 0 : 1, col_half = warpgroup == 1 ? 1 : 0;
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
      } else if (warpgroup == 2 && info.entering > 0) {
        LoadPanels<kColumns, kState>(to + Layout::kS,
                                     Bf16(args.states) + StateOffset(args, chunk.index, lane),
                                     kState, 0, kColumns, kState, at);
      }
    }
    CommitCopies();
  };
  const uint32_t c_tile = shared + Layout::kC;
  const uint32_t b_tile = shared + (Layout::kStages - 1) * Layout::kStage;
  if (warpgroup < 2) {
    LoadPanels<kScanChunk, kState>(
        warpgroup == 0 ? b_tile : c_tile,
        xbc + (warpgroup == 0 ? BColumn(args, group) : CColumn(args, group)), args.xbc_stride, 0,
        info.tokens, args.state, thread);
  }
  CommitCopies();
  load_lane(0);
  load_lane(1);
  load_lane(2);
  TokenDecays token;
  if (off_diagonal) {
    first_seen[thread] = FirstSeen(args, chunk, info.tokens, thread);
    token.Fetch(DecaysOf(args, chunk.index, lane_begin / args.slices), thread);
    token.Publish(decays[0], thread);
  }
  WaitForCopyGroups<3>();
  FenceAsyncShared();
  __syncthreads();

  float scores[32];
  WarpgroupFence();
  IssueScores<TokenStateTile, TokenStateTile>(scores, c_tile, row_half * kHalf,
                                              b_tile + col_half * kHalfBytes);
  CommitProducts();
  WaitForProducts<0>();
  Settle(scores);

  Rows rows = RowsOf(first_seen, row0);
  const BlockDocuments documents = DocumentsOf(first_seen, block);
  const bool here[2] = {!off_diagonal && row0 < info.entering,
                        !off_diagonal && row0 + 8 < info.entering};
  for (int n = 0; n < lanes; ++n) {
    WaitForCopyGroups<2>();
    FenceAsyncShared();
    __syncthreads();
    load_lane(n + 3);
    if (off_diagonal && n + 1 < lanes) {
      token.Fetch(DecaysOf(args, chunk.index, (lane_begin + n + 1) / args.slices), thread);
    }
    const HeadDecays& head = decays[n % 2];
    const uint32_t stage = shared + n % Layout::kStages * Layout::kStage;
    const uint32_t x_tile = stage + Layout::kX;

    // Not used where nothing enters, nor by the third warpgroup.
    float y[32];
    WarpgroupFence();
    IssueScores<TokenStateTile, StateTile>(y, c_tile, row_half * kHalf, stage + Layout::kS);
    CommitProducts();

    rows.begin[0] = head.begin[row0];
    rows.begin[1] = head.begin[row0 + 8];
    const float before = head.OverBlocks(0, block);
    const float enter[2] = {rows.begin[0] * before, rows.begin[1] * before};
    float over = head.OverBlocks((col_half + 1) * (kBlocks / 2), block);
    uint32_t left[16];
#pragma unroll
    for (int c = kBlocks / 2 - 1; c >= 0; --c) {
      const int earlier = col_half * (kBlocks / 2) + c;
      const float block_scores[8] = {scores[8 * c],     scores[8 * c + 1], scores[8 * c + 2],
                                     scores[8 * c + 3], scores[8 * c + 4], scores[8 * c + 5],
                                     scores[8 * c + 6], scores[8 * c + 7]};
      uint32_t mixed[4] = {};
      if (earlier == block) {
        MixOwnBlock(block_scores, head, block, rows, mixed);
      } else if (earlier < block && !documents.SeesNothingIn(earlier)) {
        if (documents.SeesAllOf(earlier)) {
          MixBlock<false>(block_scores, head, earlier, rows, over, mixed);
        } else {
          MixBlock<true>(block_scores, head, earlier, rows, over, mixed);
        }
        over *= head.OverBlock(earlier);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) left[4 * c + i] = mixed[i];
    }
    WaitForProducts<0>();
    Settle(y);
#pragma unroll
    for (int i = 0; i < 32; ++i) y[i] = here[i % 4 / 2] ? y[i] * enter[i % 4 / 2] : 0.0f;
    WarpgroupFence();
    IssueSum<TokenTile>(y, left, x_tile + col_half * kHalfBytes);
    CommitProducts();
    WaitForProducts<0>();
    Settle(y);
    Settle(left);

    float4* const earlier_y = reinterpret_cast<float4*>(memory + Layout::kEarlier) + thread;
    if (off_diagonal) {
      LeaveAccumulator(y, earlier_y);
      ArriveAtBarrier(kEarlierBarrier, 2 * kWarpgroup);
      if (n + 1 < lanes) token.Publish(decays[(n + 1) % 2], thread);
      continue;
    }
    if (warpgroup == 1) {
      WaitAtBarrier(kEarlierBarrier, 2 * kWarpgroup);
      AddAccumulator(earlier_y, y);
    }
    const LaneColumns columns = ColumnsOf(args, lane_begin + n);
    AddScaledRows(PanelRows(x_tile, block * kBlock), __ldg(args.d + columns.head), y);
    RoundPairs(y, left);
    StorePanelRows(shared + Layout::kOut, block * kBlock, left,
                   Bf16(args.y) + (chunk.row + block * kBlock) * args.y_stride + columns.col,
                   args.y_stride, info.tokens - block * kBlock, columns.cols);
  }
  WaitForCopyGroups<0>();
}

}  // namespace
}  // namespace scan

cudaError_t LaunchScanHopperForward(const ScanArgs& args, cudaStream_t stream) {
  constexpr int kBytes = scan::OutputsLayout::kBytes;
  const int64_t blocks = args.chunk_count() * args.groups;
  const int parts = scan::LanesInParts(blocks, args.lanes / args.groups);
  return Launch(scan::OutputsKernel, dim3(static_cast<unsigned>(blocks * parts)),
                scan::kOutputThreads, kBytes, stream, args, parts);
}

}  // namespace nibble::gpu
