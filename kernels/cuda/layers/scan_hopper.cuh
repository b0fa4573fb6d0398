// What the scan's backward kernels of Hopper share: tiles of 64 columns and states of 128 in
// swizzled panels (warpgroup_mma.cuh), and rows of them in a warp's registers.
//
// Thread-safety: as device code; callers place the barriers.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_HOPPER_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_HOPPER_CUH_

#include "kernels/cuda/layers/attention_hopper.cuh"
#include "kernels/cuda/layers/scan_pairs.cuh"

namespace nibble::gpu::scan {

inline constexpr int kHalf = kScanChunk / 2;  // tokens, the rows of a warpgroup's product
inline constexpr int kColumns = 64, kState = 128;
using TokenTile = PanelTile<kScanChunk, kColumns>;     // x, dy
using TokenStateTile = PanelTile<kScanChunk, kState>;  // B, C
using StateTile = PanelTile<kColumns, kState>;         // S, G
using QuadrantTile = PanelTile<kHalf, kHalf>;          // pairs of tokens
inline constexpr uint32_t kHalfBytes =
    kHalf * kPanelRowBytes;  // from a half of a panel to the other

// Quadrants of K_ji, what the pairs of tokens j, i ≥ j of a chunk give to dB and dC, summed over a
// group's lanes: j and i in the first half; both in the second; j in the first, i in the second.
inline constexpr int kQuadrants = 3;
__device__ __forceinline__ uint16_t* QuadrantOf(const ScanArgs& args, int64_t chunk, int group,
                                                int quadrant) {
  return static_cast<uint16_t*>(args.pairs) +
         ((chunk * args.groups + group) * kQuadrants + quadrant) * (kHalf * kHalf);
}

// Starts copies of a tile [kRows, kCols] by a warpgroup. from: row 0, column 0. Rows outside of
// [first, end) and columns from `cols` on become zeros.
template <int kRows, int kCols>
__device__ __forceinline__ void LoadPanels(uint32_t to, const uint16_t* from, int64_t stride,
                                           int first, int end, int cols, int thread) {
  constexpr int kPieces = kCols / 8;
  constexpr int kRowsAtOnce = kWarpgroup / kPieces;
  static_assert(kRowsAtOnce % 8 == 0 && kRows % kRowsAtOnce == 0);
  const int row = thread / kPieces, piece = thread % kPieces;
  const uint32_t at = to + piece / 8 * PanelTile<kRows, kCols>::kPanelBytes + row * kPanelRowBytes +
                      (piece ^ row) % 8 * 16;
#pragma unroll
  for (int i = 0; i < kRows / kRowsAtOnce; ++i) {
    const int r = row + i * kRowsAtOnce;
    const bool present = r >= first && r < end && piece * 8 < cols;
    CopyOrZero16(at + i * (kRowsAtOnce * kPanelRowBytes),
                 present ? from + r * stride + piece * 8 : from, present);
  }
}

// The address of a lane's row of four matrices [8, 8] that cover columns 0 … 15 of sixteen rows of
// a panel, as left fragments. Those of columns 16c … are at this address ^ 32c.
__device__ __forceinline__ uint32_t PanelRows(uint32_t panel, int first_row) {
  const uint32_t lane = threadIdx.x % 32;
  return panel + (first_row + lane % 16) * kPanelRowBytes + (lane / 16 ^ lane % 8) * 16;
}

// Calls use(i, pair) with the pairs of neighbours of a warp's sixteen rows of a panel, as fragments:
// pair i is in row i % 2 of the lane's two. An accumulator has it at AccumulatorOf(i).
template <class Use>
__device__ __forceinline__ void ForPanelPairs(uint32_t panel_rows, Use use) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    uint32_t raw[4];
    LoadMatrices(raw, panel_rows ^ (c * 32));
#pragma unroll
    for (int e = 0; e < 4; ++e) use(4 * c + e, raw[e]);
  }
}
__device__ __forceinline__ constexpr int AccumulatorOf(int i) {
  return i / 4 * 8 + i % 4 / 2 * 4 + i % 2 * 2;
}

// A warp's sixteen rows of a panel as left fragments, row by row times `factor`; rows of factor 0
// are zeros.
__device__ __forceinline__ void LoadScaledRows(uint32_t panel_rows, const float (&factor)[2],
                                               uint32_t (&left)[16]) {
  ForPanelPairs(panel_rows, [&](int i, uint32_t pair) {
    const float f = factor[i % 2];
    left[i] = f == 0.0f ? 0u : Bf16Pair(First(pair) * f, Second(pair) * f);
  });
}
// Pairs of neighbouring accumulators, rounded.
template <int kCount>
__device__ __forceinline__ void RoundPairs(const float (&x)[kCount],
                                           uint32_t (&words)[kCount / 2]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) words[i] = Bf16Pair(x[2 * i], x[2 * i + 1]);
}
// Dot products of a warp's rows of a panel with those of an accumulator, in each lane of a row.
__device__ __forceinline__ void DotRows(uint32_t panel_rows, const float (&x)[32],
                                        float (&dot)[2]) {
  dot[0] = dot[1] = 0;
  ForPanelPairs(panel_rows, [&](int i, uint32_t pair) {
    dot[i % 2] = fmaf(First(pair), x[AccumulatorOf(i)], dot[i % 2]);
    dot[i % 2] = fmaf(Second(pair), x[AccumulatorOf(i) + 1], dot[i % 2]);
  });
  dot[0] = SumOfRow(dot[0]);
  dot[1] = SumOfRow(dot[1]);
}
// x += a warp's rows of a panel · factor.
__device__ __forceinline__ void AddScaledRows(uint32_t panel_rows, float factor, float (&x)[32]) {
  ForPanelPairs(panel_rows, [&](int i, uint32_t pair) {
    float* const at = x + AccumulatorOf(i);
    at[0] = fmaf(factor, First(pair), at[0]);
    at[1] = fmaf(factor, Second(pair), at[1]);
  });
}
// A quadrant's accumulator on its way from the warpgroup off the diagonal to the one with the same
// rows: four numbers of all threads after the other. `place`: of a thread in the warpgroup.
__device__ __forceinline__ void LeaveAccumulator(const float (&x)[32], float4* place) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    place[i * kWarpgroup] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  }
}
__device__ __forceinline__ void AddAccumulator(const float4* place, float (&x)[32]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float4 part = place[i * kWarpgroup];
    x[4 * i] += part.x;
    x[4 * i + 1] += part.y;
    x[4 * i + 2] += part.z;
    x[4 * i + 3] += part.w;
  }
}
// Writes a warp's rows [16, 64], given as pairs of accumulators, to its rows of a panel and from
// there to `rows` rows and `cols` columns of global memory. first_row: of the warp in the panel.
__device__ __forceinline__ void StorePanelRows(uint32_t panel, int first_row, const uint32_t* words,
                                               uint16_t* to, int64_t stride, int rows, int cols) {
  const uint32_t panel_rows = PanelRows(panel, first_row);
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    StoreMatrices(panel_rows ^ (c * 32), words[4 * c], words[4 * c + 1], words[4 * c + 2],
                  words[4 * c + 3]);
  }
  SyncWarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x % 32);
    const int row = at / 8, piece = at % 8;
    if (row < rows && piece * 8 < cols) {
      *reinterpret_cast<uint4*>(to + row * stride + piece * 8) =
          LoadShared16(panel + (first_row + row) * kPanelRowBytes + (piece ^ row) % 8 * 16);
    }
  }
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_HOPPER_CUH_
