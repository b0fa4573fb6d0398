// The sequential part of the scan (scan_states_kernels.cu) on Hopper:
//
//   S of the next chunk   = 2^s_last S + Σ_j leave_j x_j B_jᵀ
//   G of the chunk before = 2^s_last G + Σ_i enter_i dy_i C_iᵀ
//
// A warpgroup has one lane's matrix as an accumulator and goes through the chunks of its sequence,
// forward or backward: x, scaled and rounded to BF16, comes as fragments in registers, B from
// shared memory. Two lanes of a group share the tile of B or C if there are enough of them. A state
// is written while the products of the next one run.
//
// Traffic: as scan_states_kernels.cu, which waits for its own loads from shared memory longer than
// for the traffic. The tiles of the next two chunks arrive while those of one are used.
#include "kernels/cuda/layers/scan_hopper.cuh"

namespace nibble::gpu {
namespace scan {
namespace {

template <int kLanes>
struct HopperStatesLayout {
  static constexpr int kStages = 3;
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kRight = kLanes * TokenTile::kBytes;
  static constexpr uint32_t kWeights = kRight + TokenStateTile::kBytes;
  static constexpr uint32_t kWeightBytes = kScanChunk * sizeof(float);
  static constexpr uint32_t kStage = kWeights + 1024;  // panels are at multiples of 1024
  static_assert(kLanes * kWeightBytes <= 1024);
  // A panel per lane, in which states are on their way to global memory.
  static constexpr uint32_t kOut = kStages * kStage;
  static constexpr uint32_t kOutBytes = kColumns * kPanelRowBytes;
  static constexpr uint32_t kBytes = kOut + kLanes * kOutBytes;
  static_assert(kBytes <= 227 << 10);
};

template <int kLanes>
__global__ __launch_bounds__(kWarpgroup* kLanes,
                             1) void HopperStatesKernel(const __grid_constant__ ScanArgs args) {
  using Layout = HopperStatesLayout<kLanes>;
  const uint32_t shared = SharedAddress(DynamicShared());
  const bool forward = blockIdx.y == 0;
  const int warpgroup = static_cast<int>(threadIdx.x / kWarpgroup);
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup);
  const int warp = thread / 32, in_warp = thread % 32, quad = thread % 4;
  const int lane_blocks = args.lanes / kLanes;
  const int64_t sequence = blockIdx.x / lane_blocks;
  const int lane = static_cast<int>(blockIdx.x % lane_blocks) * kLanes + warpgroup;
  const LaneColumns columns = ColumnsOf(args, lane);
  const int group = columns.head / (args.heads / args.groups);
  const uint16_t* left_from = Bf16(forward ? args.xbc : args.dy) + columns.col;
  const int64_t left_stride = forward ? args.xbc_stride : args.dy_stride;
  const uint16_t* right = Bf16(args.xbc) + (forward ? BColumn(args, group) : CColumn(args, group));
  uint16_t* out = Bf16(forward ? args.states : args.gradients);
  const int weights = forward ? ScanDecays::kLeave : ScanDecays::kEnter;

  const int count = args.chunks_per_sequence;
  const int64_t first_chunk = sequence * count;
  const auto chunk_of = [&](int step) { return first_chunk + (forward ? step : count - 1 - step); };
  const auto load_step = [&](int step) {
    return StepOf(args.chunks[chunk_of(step < count ? step : count - 1)], forward);
  };
  // The last chunk's tokens are in no matrix.
  const auto load_tiles = [&](int step, const Step& rows) {
    if (step + 1 < count && rows.first < rows.end) {
      const ChunkPlace chunk = PlaceOfChunk(args, chunk_of(step));
      const uint32_t to = shared + step % Layout::kStages * Layout::kStage;
      LoadPanels<kScanChunk, kColumns>(to + Layout::kX + warpgroup * TokenTile::kBytes,
                                       left_from + chunk.row * left_stride, left_stride, rows.first,
                                       rows.end, columns.cols, thread);
      // The lanes of a block share the panels of B.
#pragma unroll
      for (int panel = 0; panel < 2; ++panel) {
        if (kLanes == 2 && panel != warpgroup) continue;
        LoadPanels<kScanChunk, kPanelColumns>(
            to + Layout::kRight + panel * TokenStateTile::kPanelBytes,
            right + chunk.row * args.xbc_stride + panel * kPanelColumns, args.xbc_stride,
            rows.first, rows.end, args.state - panel * kPanelColumns, thread);
      }
      if (warp == 0) {
        CopyOrZero16(to + Layout::kWeights + warpgroup * Layout::kWeightBytes + in_warp * 16,
                     DecaysOf(args, chunk.index, columns.head) + weights * kScanChunk + in_warp * 4,
                     true);
      }
    }
    CommitCopies();
  };
  const auto load_decay = [&](int step) {
    return __ldg(DecaysOf(args, chunk_of(step < count ? step : count - 1), columns.head) +
                 ScanDecays::kEnter * kScanChunk + kScanChunk - 1);
  };
  const uint32_t out_panel = shared + Layout::kOut + warpgroup * Layout::kOutBytes;
  // Columns [64 panel, …) of the warp's sixteen rows.
  const auto store = [&](const uint32_t(&words)[32], int step) {
    uint16_t* const to = out + StateOffset(args, chunk_of(step), lane) + warp * kBlock * kState;
#pragma unroll
    for (int panel = 0; panel < 2; ++panel) {
      StorePanelRows(out_panel, warp * kBlock, words + 16 * panel, to + panel * kPanelColumns,
                     kState, kBlock, kPanelColumns);
      SyncWarp();
    }
  };

  float sum[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
  // What a step needs before its tiles are there is loaded ahead.
  Step step = load_step(0), next = load_step(1), after = load_step(2);
  float decay = load_decay(0);
  load_tiles(0, step);
  load_tiles(1, next);
  for (int k = 0; k < count; ++k) {
    WaitForCopyGroups<1>();
    FenceAsyncShared();
    __syncthreads();
    load_tiles(k + 2, after);
    const Step last = load_step(k + 3);
    const float next_decay = load_decay(k + 1);

    uint32_t words[32];
    RoundPairs(sum, words);
    if (k + 1 < count && step.first < step.end) {
#pragma unroll
      for (int i = 0; i < 64; ++i) sum[i] = step.carries ? sum[i] * decay : 0.0f;
      const uint32_t stage = shared + k % Layout::kStages * Layout::kStage;
      // xᵀ of the warp's sixteen columns: four matrices of [16 tokens, 16 columns].
      const uint32_t x = stage + Layout::kX + warpgroup * TokenTile::kBytes +
                         (in_warp % 8 + in_warp / 16 * 8) * kPanelRowBytes +
                         ((2 * warp + in_warp / 8 % 2) ^ in_warp % 8) * 16;
      const uint32_t w = stage + Layout::kWeights + warpgroup * Layout::kWeightBytes + quad * 8;
      uint32_t left[32];
#pragma unroll
      for (int t = 0; t < kBlocks; ++t) {
        uint32_t raw[4];
        LoadMatricesTransposed(raw, x + t * (kBlock * kPanelRowBytes));
        const float2 w0 = LoadShared8(w + t * 64), w1 = LoadShared8(w + t * 64 + 32);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float2 factor = e < 2 ? w0 : w1;
          left[4 * t + e] = Bf16Pair(First(raw[e]) * factor.x, Second(raw[e]) * factor.y);
        }
      }
      WarpgroupFence();
      IssueSum<TokenStateTile>(sum, left, stage + Layout::kRight);
      CommitProducts();
      if (step.stores) store(words, k);
      WaitForProducts<0>();
      Settle(sum);
      Settle(left);
    } else if (step.stores) {
      store(words, k);
    }
    step = next;
    next = after;
    after = last;
    decay = next_decay;
  }
  WaitForCopyGroups<0>();
}

template <int kLanes>
cudaError_t LaunchHopperStates(const ScanArgs& args, bool gradients, cudaStream_t stream) {
  const auto kernel = HopperStatesKernel<kLanes>;
  constexpr int kBytes = HopperStatesLayout<kLanes>::kBytes;
  const int64_t blocks = args.sequences * (args.lanes / kLanes);
  return Launch(kernel, dim3(static_cast<unsigned>(blocks), gradients ? 2 : 1), kWarpgroup * kLanes,
                kBytes, stream, args);
}

}  // namespace
}  // namespace scan

cudaError_t LaunchScanHopperStates(const ScanArgs& args, bool gradients, cudaStream_t stream) {
  // Enough thread blocks for a large device, before lanes share them.
  constexpr int64_t kEnough = 100;
  const int64_t pairs = args.sequences * (args.lanes / 2) * (gradients ? 2 : 1);
  const bool even = args.lanes / args.groups % 2 == 0;
  return even && pairs >= kEnough ? scan::LaunchHopperStates<2>(args, gradients, stream)
                                  : scan::LaunchHopperStates<1>(args, gradients, stream);
}

}  // namespace nibble::gpu
