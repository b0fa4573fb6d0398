// The scan's backward pass inside the chunks on Hopper, second part: dB and dC, and what decays
// from chunk to chunk, given the sums K of scan_hopper_pairs.cu:
//
//   dB_j = Σ_{i≥j} K_ji C_i + Σ over lanes of leave_j Gᵀ x_j
//   dC_i = Σ_{j≤i} K_ji B_j + Σ over lanes of enter_i Sᵀ dy_i
//   e_i  = enter_i dy_i·(S C_i);  carried = 2^s_last ⟨G, S⟩
//
// A thread block processes one chunk of a group, lane by lane; four warpgroups have the two halves
// of dB and those of dC as accumulators over all lanes. K comes last, in place of a lane's tiles.
//
// Traffic: per chunk and lane 16 KB each of x, dy, S and G are read: at 64 lanes and 16,384 tokens
// 0.54 GB, 0.13 ms of a memory that copies 4.26 TB/s. The products take half of that. The tiles of
// the next two lanes arrive while those of one are used.
#include "kernels/cuda/layers/scan_hopper.cuh"

namespace nibble::gpu {
namespace scan {
namespace {

constexpr int kGroupWarpgroups = 4;
constexpr int kGroupThreads = kGroupWarpgroups * kWarpgroup;

struct GroupLayout {
  static constexpr int kStages = 3;
  static constexpr uint32_t kX = 0;
  static constexpr uint32_t kDy = kX + TokenTile::kBytes;
  static constexpr uint32_t kG = kDy + TokenTile::kBytes;
  static constexpr uint32_t kS = kG + StateTile::kBytes;
  static constexpr uint32_t kStage = kS + StateTile::kBytes;
  static constexpr uint32_t kC = kStages * kStage;
  static constexpr uint32_t kCarried = kC + TokenStateTile::kBytes;
  static constexpr uint32_t kBytes = kCarried + 2 * (kGroupThreads / 32) * sizeof(float);
  static_assert(kBytes <= 227 << 10);
  // A stage after the last lane.
  static constexpr uint32_t kPairs = 0;
  static constexpr uint32_t kB = kPairs + kQuadrants * QuadrantTile::kBytes;
  static_assert(kB + TokenStateTile::kBytes <= kStage);
};

// This thread's part of ⟨a, b⟩ of two tiles.
__device__ __forceinline__ float DotOfStates(uint32_t a, uint32_t b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < StateTile::kBytes / 16 / kGroupThreads; ++i) {
    const uint32_t offset = (i * kGroupThreads + threadIdx.x) * 16;
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

// sum[64, 128] += a · b, one step of 64 of the depth: a quadrant of K, or its transpose, and half
// of the rows of C or B.
template <Along kA>
__device__ __forceinline__ void AddPairs(float (&sum)[64], uint32_t quadrant, uint32_t rows) {
  const uint64_t left = kA == Along::kDepth ? QuadrantTile::AlongDepth(quadrant, 0)
                                            : QuadrantTile::AlongOutput(quadrant, 0);
  const uint64_t right = TokenStateTile::AlongOutput(rows, 0);
  WarpgroupFence();
#pragma unroll
  for (uint32_t step = 0; step < kHalf / 16; ++step) {
    MultiplyShared<kA, Along::kOutput>(sum, Advance(left, step * DepthStepBytes(kA)),
                                       Advance(right, step * DepthStepBytes(Along::kOutput)), true);
  }
  CommitProducts();
  WaitForProducts<0>();
  Settle(sum);
}

__global__ __launch_bounds__(kGroupThreads,
                             1) void GroupKernel(const __grid_constant__ ScanArgs args) {
  using Layout = GroupLayout;
  unsigned char* memory = DynamicShared();
  const uint32_t shared = SharedAddress(memory);
  float* carried = reinterpret_cast<float*>(memory + Layout::kCarried);
  const int warpgroup = static_cast<int>(threadIdx.x / kWarpgroup);
  const int thread = static_cast<int>(threadIdx.x % kWarpgroup), quad = thread % 4;
  const int group = static_cast<int>(blockIdx.x % args.groups);
  const ChunkPlace chunk = PlaceOfChunk(args, blockIdx.x / args.groups);
  const ScanChunkInfo info = args.chunks[chunk.index];
  const int lanes = args.lanes / args.groups, lane_begin = group * lanes;
  const uint16_t* xbc = Bf16(args.xbc) + chunk.row * args.xbc_stride;
  const uint16_t* dy = Bf16(args.dy) + chunk.row * args.dy_stride;
  const bool inputs = warpgroup < 2;  // dB, otherwise dC
  const int half = warpgroup % 2;
  const int block = half * (kBlocks / 2) + thread / 32;
  const int row0 = block * kBlock + thread % 32 / 4;
  const bool carries = info.followed && info.entering == info.tokens;
  const bool reads = info.entering > 0;

  const auto load_group = [&](uint32_t to, int64_t column, int at) {
    LoadPanels<kScanChunk, kState>(to, xbc + column, args.xbc_stride, 0, info.tokens, args.state,
                                   at);
  };
  const auto load_state = [&](uint32_t to, const void* states, int lane, int at) {
    LoadPanels<kColumns, kState>(to, Bf16(states) + StateOffset(args, chunk.index, lane), kState, 0,
                                 kColumns, kState, at);
  };
  // Lane `index`, or after the last one what the pairs need.
  const auto load = [&](int index) {
    const int at = Opaque(thread), lane = lane_begin + index;
    const uint32_t to = shared + index % Layout::kStages * Layout::kStage;
    if (index < lanes) {
      const LaneColumns columns = ColumnsOf(args, lane);
      if (warpgroup == 0 && info.followed) {
        LoadPanels<kScanChunk, kColumns>(to + Layout::kX, xbc + columns.col, args.xbc_stride, 0,
                                         info.tokens, columns.cols, at);
      } else if (warpgroup == 1 && reads) {
        LoadPanels<kScanChunk, kColumns>(to + Layout::kDy, dy + columns.col, args.dy_stride, 0,
                                         info.tokens, columns.cols, at);
      } else if (warpgroup == 2 && info.followed) {
        load_state(to + Layout::kG, args.gradients, lane, at);
      } else if (warpgroup == 3 && reads) {
        load_state(to + Layout::kS, args.states, lane, at);
      }
    } else if (index == lanes) {
      if (warpgroup < kQuadrants) {
        LoadPanels<kHalf, kHalf>(to + Layout::kPairs + warpgroup * QuadrantTile::kBytes,
                                 QuadrantOf(args, chunk.index, group, warpgroup), kHalf, 0, kHalf,
                                 kHalf, at);
      } else {
        load_group(to + Layout::kB, BColumn(args, group), at);
      }
    }
    CommitCopies();
  };
  // 2^(s of the last token − s_j) Δ_j, or 2^s_i, of the thread's rows.
  const auto load_factor = [&](int index, float(&to)[2]) {
    const float* from = DecaysOf(args, chunk.index, (lane_begin + index) / args.slices) +
                        (inputs ? ScanDecays::kLeave : ScanDecays::kEnter) * kScanChunk + row0;
    to[0] = __ldg(from);
    to[1] = __ldg(from + 8);
  };
  // Once all warps have finished a lane.
  const auto write_carried = [&](int index) {
    if (threadIdx.x != 0) return;
    const float* parts = carried + index % 2 * (kGroupThreads / 32);
    float dot = 0;
    for (int w = 0; w < kGroupThreads / 32; ++w) dot += parts[w];
    const int lane = lane_begin + index;
    const float over_chunk = DecaysOf(
        args, chunk.index, lane / args.slices)[ScanDecays::kEnter * kScanChunk + kScanChunk - 1];
    args.head_sums[chunk.index * args.lanes + lane].carried = carries ? over_chunk * dot : 0.0f;
  };
  if (warpgroup == 0) load_group(shared + Layout::kC, CColumn(args, group), thread);
  load(0);
  load(1);
  float next_factor[2];
  load_factor(0, next_factor);

  const bool here[2] = {
      inputs ? info.followed && row0 >= info.last_doc : row0 < info.entering,
      inputs ? info.followed && row0 + 8 >= info.last_doc : row0 + 8 < info.entering};
  const bool used =
      inputs ? info.followed && (half + 1) * kHalf > info.last_doc : half * kHalf < info.entering;
  float sum[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
  for (int n = 0; n < lanes; ++n) {
    WaitForCopyGroups<1>();
    FenceAsyncShared();
    __syncthreads();
    if (n > 0) write_carried(n - 1);
    load(n + 2);
    const float factor[2] = {here[0] ? next_factor[0] : 0.0f, here[1] ? next_factor[1] : 0.0f};
    if (n + 1 < lanes) load_factor(n + 1, next_factor);
    const uint32_t stage = shared + n % Layout::kStages * Layout::kStage;
    const uint32_t rows = PanelRows(stage + (inputs ? Layout::kX : Layout::kDy), block * kBlock);
    float entered[2] = {};
    if (!inputs && used) {
      float part[32];
      WarpgroupFence();
      IssueScores<TokenStateTile, StateTile>(part, shared + Layout::kC, half * kHalf,
                                             stage + Layout::kS);
      CommitProducts();
      WaitForProducts<0>();
      Settle(part);
      float dot[2];
      DotRows(rows, part, dot);
      entered[0] = here[0] ? dot[0] * factor[0] : 0.0f;
      entered[1] = here[1] ? dot[1] * factor[1] : 0.0f;
    }
    if (used) {
      uint32_t left[16];
      LoadScaledRows(rows, factor, left);
      WarpgroupFence();
      IssueSum<StateTile>(sum, left, stage + (inputs ? Layout::kG : Layout::kS));
      CommitProducts();
      WaitForProducts<0>();
      Settle(sum);
      Settle(left);
    }
    if (!inputs && quad == 0) {
      float* to = args.token_sums +
                  ((chunk.index * args.lanes + lane_begin + n) * ScanTokenSums::kArrays +
                   ScanTokenSums::kEntered) *
                      kScanChunk +
                  row0;
      to[0] = entered[0];
      to[8] = entered[1];
    }
    if (carries) {
      float dot = DotOfStates(stage + Layout::kS, stage + Layout::kG);
#pragma unroll
      for (unsigned mask = 1; mask < 32; mask *= 2) dot += FromLane(dot, mask);
      if (threadIdx.x % 32 == 0) {
        carried[n % 2 * (kGroupThreads / 32) + static_cast<int>(threadIdx.x / 32)] = dot;
      }
    }
  }

  WaitForCopyGroups<0>();
  FenceAsyncShared();
  __syncthreads();
  write_carried(lanes - 1);
  const uint32_t last = shared + lanes % Layout::kStages * Layout::kStage;
  const auto quadrant = [&](uint32_t q) {
    return last + Layout::kPairs + q * QuadrantTile::kBytes;
  };
  const uint32_t c_tile = shared + Layout::kC, b_tile = last + Layout::kB;
  // Quadrants 0 and 1 are on the diagonal, 2 has tokens j of the first half and i of the second.
  const uint32_t on_diagonal = static_cast<uint32_t>(half);
  if (inputs) {
    AddPairs<Along::kDepth>(sum, quadrant(on_diagonal), c_tile + half * kHalfBytes);
    if (half == 0) AddPairs<Along::kDepth>(sum, quadrant(2), c_tile + kHalfBytes);
  } else {
    AddPairs<Along::kOutput>(sum, quadrant(on_diagonal), b_tile + half * kHalfBytes);
    if (half == 1) AddPairs<Along::kOutput>(sum, quadrant(2), b_tile);
  }

  uint16_t* const to = Bf16(args.dxbc) + (chunk.row + row0) * args.dxbc_stride +
                       (inputs ? BColumn(args, group) : CColumn(args, group)) + quad * 2;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    if (row0 + row * 8 >= info.tokens) continue;
    uint16_t* const row_to = to + row * 8 * args.dxbc_stride;
#pragma unroll
    for (int t = 0; t < kState / 8; ++t) {
      if (t * 8 >= args.state) break;
      *reinterpret_cast<uint32_t*>(row_to + t * 8) =
          Bf16Pair(sum[4 * t + 2 * row], sum[4 * t + 2 * row + 1]);
    }
  }
}

}  // namespace
}  // namespace scan

cudaError_t LaunchScanHopperGroups(const ScanArgs& args, cudaStream_t stream) {
  constexpr int kBytes = scan::GroupLayout::kBytes;
  return Launch(scan::GroupKernel, dim3(static_cast<unsigned>(args.chunk_count() * args.groups)),
                scan::kGroupThreads, kBytes, stream, args);
}

}  // namespace nibble::gpu
