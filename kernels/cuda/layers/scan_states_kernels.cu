// The sequential part of the scan: the state that enters every chunk, S [columns, state], and in
// the backward pass the gradient of the state that leaves every chunk, G of the same shape.
//
//   S of the next chunk   = 2^s_last S + Σ_j leave_j x_j B_jᵀ
//   G of the chunk before = 2^s_last G + Σ_i enter_i dy_i C_iᵀ
//
// A group of four warps has one lane's matrix in registers, in FP32, and goes through the chunks of
// its sequence, forward or backward; each warp has a quarter of the state's columns. Two lanes of a
// group share the tile of B or C if there are enough of them. Lanes × sequences × directions run in
// parallel.
//
// Traffic: x (or dy) once, B (or C) once per thread block through the second-level cache, and the
// states in BF16: at 64 columns and state 128, 16 KB read and 16 KB written per chunk and lane. The
// matmuls are 4.2 MFLOP, which take half the time of the traffic. Two chunks' tiles are in shared
// memory: one is used while the next one arrives.
#include "kernels/cuda/layers/scan_tile.cuh"

namespace nibble::gpu {
namespace {

using namespace scan;

constexpr int kLaneThreads = 128;

template <int kP, int kN, int kLanes>
struct StatesLayout {
  static constexpr int kWarpCols = kN / 4;
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kXBytes = kScanChunk * kPitch<kP>;
  static constexpr uint32_t kRight = kLanes * kXBytes;
  static constexpr uint32_t kWeights = kRight + kScanChunk * kPitch<kN>;
  static constexpr uint32_t kStage = kWeights + kLanes * kScanChunk * sizeof(float);
  // [16, kWarpCols] of each warp, on its way to global memory.
  static constexpr uint32_t kOut = 2 * kStage;
  static constexpr uint32_t kOutBytes = kBlock * kPitch<kWarpCols>;
  static constexpr uint32_t kBytes = kOut + kLanes * 4 * kOutBytes;
};

template <int kP, int kN, int kLanes>
__global__ __launch_bounds__(kLaneThreads* kLanes, kLanes == 1 ? 2 : 1) void StatesKernel(
    const __grid_constant__ ScanArgs args) {
  using Layout = StatesLayout<kP, kN, kLanes>;
  constexpr int kRowTiles = kP / 16, kColTiles = Layout::kWarpCols / 8;
  const uint32_t shared = SharedAddress(DynamicShared());
  const bool forward = blockIdx.y == 0;
  const int thread = static_cast<int>(threadIdx.x % kLaneThreads);
  const int group_of_warps = static_cast<int>(threadIdx.x / kLaneThreads);
  const int warp = thread / 32, quad = thread % 4;
  const int lane_blocks = args.lanes / kLanes;
  const int64_t sequence = blockIdx.x / lane_blocks;
  const int lane = static_cast<int>(blockIdx.x % lane_blocks) * kLanes + group_of_warps;
  const LaneColumns columns = ColumnsOf(args, lane);
  const int group = columns.head / (args.heads / args.groups);
  const uint16_t* left = Bf16(forward ? args.xbc : args.dy) + columns.col;
  const int64_t left_stride = forward ? args.xbc_stride : args.dy_stride;
  const uint16_t* right = Bf16(args.xbc) + (forward ? BColumn(args, group) : CColumn(args, group));
  uint16_t* out = Bf16(forward ? args.states : args.gradients) + warp * Layout::kWarpCols;
  const int weights = forward ? ScanDecays::kLeave : ScanDecays::kEnter;

  const int count = args.chunks_per_sequence;
  const int64_t first_chunk = sequence * count;
  const auto chunk_of = [&](int step) { return first_chunk + (forward ? step : count - 1 - step); };
  const auto load_step = [&](int step) {
    return StepOf(args.chunks[chunk_of(step < count ? step : count - 1)], forward);
  };
  const auto load_tiles = [&](int step, const Step& rows) {
    const ChunkPlace chunk = PlaceOfChunk(args, chunk_of(step));
    const uint32_t to = shared + step % 2 * Layout::kStage;
    LoadTile<kScanChunk, kP, kLaneThreads>(to + Layout::kX + group_of_warps * Layout::kXBytes,
                                           left + chunk.row * left_stride, left_stride, rows.first,
                                           rows.end, columns.cols, thread);
    LoadTile<kScanChunk, kN, kLaneThreads * kLanes>(
        to + Layout::kRight, right + chunk.row * args.xbc_stride, args.xbc_stride, rows.first,
        rows.end, args.state, static_cast<int>(threadIdx.x));
    if (thread < kScanChunk / 4) {
      CopyOrZero16(to + Layout::kWeights + group_of_warps * (kScanChunk * 4) + thread * 16,
                   DecaysOf(args, chunk.index, columns.head) + weights * kScanChunk + thread * 4,
                   true);
    }
  };
  const auto load_decay = [&](int step) {
    return __ldg(DecaysOf(args, chunk_of(step < count ? step : count - 1), columns.head) +
                 ScanDecays::kEnter * kScanChunk + kScanChunk - 1);
  };

  float sum[kRowTiles][kColTiles][4] = {};
  // Data that a step needs before its tiles arrive is loaded one step ahead.
  Step step = load_step(0), next = load_step(1);
  float decay = load_decay(0);
  if (count > 1 && step.first < step.end) load_tiles(0, step);
  CommitCopies();
  for (int k = 0; k < count; ++k) {
    WaitForCopyGroups<0>();
    __syncthreads();
    if (k + 2 < count && next.first < next.end) load_tiles(k + 1, next);
    CommitCopies();
    const Step after = load_step(k + 2);
    const float next_decay = load_decay(k + 1);

    if (step.stores) {
      const uint32_t staged =
          shared + Layout::kOut + (group_of_warps * 4 + warp) * Layout::kOutBytes;
      const uint32_t lane_offset = LaneOffsetA(kPitch<Layout::kWarpCols>);
      uint16_t* to = out + StateOffset(args, chunk_of(k), lane);
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColTiles; j += 2) {
          const auto& s = sum[i];
          PutPairs(staged, lane_offset, j / 2, Bf16Pair(s[j][0], s[j][1]),
                   Bf16Pair(s[j][2], s[j][3]), Bf16Pair(s[j + 1][0], s[j + 1][1]),
                   Bf16Pair(s[j + 1][2], s[j + 1][3]));
        }
        StoreRows<Layout::kWarpCols>(staged, to + i * 16 * kN, kN, kBlock, Layout::kWarpCols);
      }
    }

    if (k + 1 < count && step.first < step.end) {
      const float factor = step.carries ? decay : 0.0f;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColTiles; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            sum[i][j][e] = step.carries ? sum[i][j][e] * factor : 0.0f;
          }
        }
      }
      const uint32_t stage = shared + k % 2 * Layout::kStage;
      const uint32_t x =
          stage + Layout::kX + group_of_warps * Layout::kXBytes + LaneOffsetB(kPitch<kP>);
      const uint32_t b =
          stage + Layout::kRight + warp * (Layout::kWarpCols * 2) + LaneOffsetA(kPitch<kN>);
      const uint32_t w = stage + Layout::kWeights + group_of_warps * (kScanChunk * 4) + quad * 8;
#pragma unroll 2
      for (int t = 0; t < kScanChunk; t += kBlock) {
        uint32_t xt[kRowTiles][4];
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          LoadMatricesTransposed(xt[i], x + t * kPitch<kP> + i * 32);
        }
        const float2 w0 = LoadShared8(w + t * 4), w1 = LoadShared8(w + t * 4 + 32);
#pragma unroll
        for (int j = 0; j < kColTiles; j += 2) {
          uint32_t raw[4];
          LoadMatricesTransposed(raw, b + t * kPitch<kN> + j * 16);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t b0 = Bf16Pair(First(raw[2 * half]) * w0.x, Second(raw[2 * half]) * w0.y);
            const uint32_t b1 =
                Bf16Pair(First(raw[2 * half + 1]) * w1.x, Second(raw[2 * half + 1]) * w1.y);
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i) MultiplyAdd(sum[i][j + half], xt[i], b0, b1);
          }
        }
      }
    }
    step = next;
    next = after;
    decay = next_decay;
  }
  WaitForCopyGroups<0>();
}

template <int kP, int kN, int kLanes>
cudaError_t LaunchStates(const ScanArgs& args, bool gradients, cudaStream_t stream) {
  const auto kernel = StatesKernel<kP, kN, kLanes>;
  constexpr int kBytes = StatesLayout<kP, kN, kLanes>::kBytes;
  const int64_t blocks = args.sequences * (args.lanes / kLanes);
  return Launch(kernel, dim3(static_cast<unsigned>(blocks), gradients ? 2 : 1),
                kLaneThreads * kLanes, kBytes, stream, args);
}

template <int kP, int kN>
cudaError_t LaunchStatesOf(const ScanArgs& args, bool gradients, cudaStream_t stream) {
  // Enough thread blocks for a large device, before lanes share them.
  constexpr int64_t kEnough = 100;
  const int64_t pairs = args.sequences * (args.lanes / 2) * (gradients ? 2 : 1);
  const bool even = args.lanes / args.groups % 2 == 0;
  return even && pairs >= kEnough ? LaunchStates<kP, kN, 2>(args, gradients, stream)
                                  : LaunchStates<kP, kN, 1>(args, gradients, stream);
}

}  // namespace

cudaError_t LaunchScanStates(const ScanArgs& args, bool gradients, cudaStream_t stream) {
  if (args.tile_state == 64) {
    return args.tile_cols == 32 ? LaunchStatesOf<32, 64>(args, gradients, stream)
                                : LaunchStatesOf<64, 64>(args, gradients, stream);
  }
  return args.tile_cols == 64 ? LaunchStatesOf<64, 128>(args, gradients, stream)
                              : LaunchStatesOf<80, 128>(args, gradients, stream);
}

}  // namespace nibble::gpu
