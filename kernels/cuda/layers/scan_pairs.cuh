// Operations of the scan's kernels on pairs of tokens: sixteen rows of a warp against a block of
// sixteen columns, in registers.
//
// Thread-safety: as device code; all lanes of a warp call together.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_PAIRS_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_PAIRS_CUH_

#include "kernels/cuda/layers/scan_tile.cuh"

namespace nibble::gpu::scan {

// How many thread blocks share a group's lanes in the forward pass, where there are few chunks and
// groups, `blocks` of them: each has at least four lanes.
inline int LanesInParts(int64_t blocks, int64_t group_lanes) {
  constexpr int64_t kEnough = 256;
  int64_t parts = (kEnough + blocks - 1) / blocks;
  if (parts > group_lanes / 4) parts = group_lanes / 4;
  if (blocks >= kEnough / 2 || parts < 1) parts = 1;
  return static_cast<int>(parts);
}

// The two rows of a lane, r and r + 8 of its warp's block, as tokens i that depend on tokens j.
struct Rows {
  int first[2];    // the first token of the chunk that each depends on
  float begin[2];  // HeadDecays::begin
};
__device__ __forceinline__ Rows RowsOf(const int* first_seen, int row0) {
  return {{first_seen[row0], first_seen[row0 + 8]}, {0, 0}};
}
// The tokens that a block of tokens i depends on. first_seen never decreases.
struct BlockDocuments {
  int first_of_first, first_of_last;

  __device__ __forceinline__ bool SeesNothingIn(int block) const {
    return first_of_first >= (block + 1) * kBlock;
  }
  __device__ __forceinline__ bool SeesAllOf(int block) const {
    return first_of_last <= block * kBlock;
  }
};
__device__ __forceinline__ BlockDocuments DocumentsOf(const int* first_seen, int block) {
  return {first_seen[block * kBlock], first_seen[block * kBlock + kBlock - 1]};
}

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

// The same for the warp's own block.
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

// Left fragments of a warp's sixteen rows of a tile [rows, kCols].
template <int kCols>
__device__ __forceinline__ void LoadRows(uint32_t (&left)[kCols / 16][4], uint32_t tile,
                                         int block) {
  const uint32_t from = tile + block * (kBlock * kPitch<kCols>)+LaneOffsetA(kPitch<kCols>);
#pragma unroll
  for (int c = 0; c < kCols / 16; ++c) LoadMatrices(left[c], from + c * 32);
}
// sum[0 … 1] += left · (sixteen rows of a tile [rows, kCols])ᵀ: columns 0 … 7 and 8 … 15.
template <int kCols>
__device__ __forceinline__ void MultiplyRows(float (&sum)[2][4],
                                             const uint32_t (&left)[kCols / 16][4], uint32_t tile,
                                             int block) {
  const uint32_t from = tile + block * (kBlock * kPitch<kCols>)+LaneOffsetB(kPitch<kCols>);
#pragma unroll
  for (int c = 0; c < kCols / 16; ++c) {
    uint32_t right[4];
    LoadMatrices(right, from + c * 32);
    MultiplyAdd(sum[0], left[c], right[0], right[1]);
    MultiplyAdd(sum[1], left[c], right[2], right[3]);
  }
}
// sum += left · sixteen rows of a tile [rows, kCols]: the depth is the rows.
template <int kCols>
__device__ __forceinline__ void MultiplyTokens(float (&sum)[kCols / 8][4],
                                               const uint32_t (&left)[4], uint32_t tile,
                                               int block) {
  const uint32_t from = tile + block * (kBlock * kPitch<kCols>)+LaneOffsetA(kPitch<kCols>);
#pragma unroll
  for (int c = 0; c < kCols / 8; c += 2) {
    uint32_t right[4];
    LoadMatricesTransposed(right, from + c * 16);
    MultiplyAdd(sum[c], left, right[0], right[1]);
    MultiplyAdd(sum[c + 1], left, right[2], right[3]);
  }
}
// sum += left · state, or · stateᵀ for a state [kP, kN]: left's depth is kP, or kN.
template <int kP, int kN>
__device__ __forceinline__ void MultiplyTransposedState(float (&sum)[kP / 8][4],
                                                        const uint32_t (&left)[4], uint32_t state,
                                                        int depth) {
  const uint32_t from = state + depth * 32 + LaneOffsetB(kPitch<kN>);
#pragma unroll
  for (int p = 0; p < kP / 8; p += 2) {
    uint32_t right[4];
    LoadMatrices(right, from + p * (8 * kPitch<kN>));
    MultiplyAdd(sum[p], left, right[0], right[1]);
    MultiplyAdd(sum[p + 1], left, right[2], right[3]);
  }
}

// FP32 values of pairs of blocks in shared memory, one per pair that a chunk has: rows of a warp's
// own block against the k-th block after it, or before it. A lane has the eight values of its
// accumulators, [half][row][e], where only it reads them.
inline constexpr uint32_t kPairBytes = kBlock * kBlock * sizeof(float);
inline constexpr uint32_t kAllPairBytes = kBlocks * (kBlocks + 1) / 2 * kPairBytes;
class PairTable {
 public:
  // first: how many pairs the warps before this one have.
  __device__ __forceinline__ PairTable(unsigned char* memory, int first)
      : at_(reinterpret_cast<float4*>(memory + first * kPairBytes) + threadIdx.x % 32) {}

  __device__ __forceinline__ void Load(int k, float (&to)[8]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 from = at_[k * 64 + half * 32];
      to[half * 4] = from.x;
      to[half * 4 + 1] = from.y;
      to[half * 4 + 2] = from.z;
      to[half * 4 + 3] = from.w;
    }
  }
  __device__ __forceinline__ void Store(int k, const float (&from)[8]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      at_[k * 64 + half * 32] =
          make_float4(from[half * 4], from[half * 4 + 1], from[half * 4 + 2], from[half * 4 + 3]);
    }
  }

 private:
  float4* at_;
};

// Pairs of values of two neighbouring accumulators, as words of a left fragment.
__device__ __forceinline__ void RoundToLeft(const float (&first)[4], const float (&second)[4],
                                            uint32_t (&left)[4]) {
  left[0] = Bf16Pair(first[0], first[1]);
  left[1] = Bf16Pair(first[2], first[3]);
  left[2] = Bf16Pair(second[0], second[1]);
  left[3] = Bf16Pair(second[2], second[3]);
}
// The same for a block of pairs.
__device__ __forceinline__ void RoundToLeft(const float (&pairs)[8], uint32_t (&left)[4]) {
  left[0] = Bf16Pair(pairs[0], pairs[1]);
  left[1] = Bf16Pair(pairs[2], pairs[3]);
  left[2] = Bf16Pair(pairs[4], pairs[5]);
  left[3] = Bf16Pair(pairs[6], pairs[7]);
}
// Rounds a warp's accumulators [16, kCols] into its rows of a tile and from there to `rows` rows
// and `cols` columns of global memory.
template <int kCols>
__device__ __forceinline__ void StoreSums(const float (&sum)[kCols / 8][4], uint32_t tile_rows,
                                          uint16_t* to, int64_t stride, int rows, int cols) {
  const uint32_t at = tile_rows + LaneOffsetA(kPitch<kCols>);
#pragma unroll
  for (int c = 0; c < kCols / 8; c += 2) {
    uint32_t word[4];
    RoundToLeft(sum[c], sum[c + 1], word);
    StoreMatrices(at + c * 16, word[0], word[1], word[2], word[3]);
  }
  StoreRows<kCols>(tile_rows, to, stride, rows, cols);
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_PAIRS_CUH_
