// Tiles of the scan in shared memory: matrices of BF16 with padded rows, so that the eight rows of
// a matrix load are in different banks; the chunks and lanes that thread blocks work on; and the
// exponents of a head.
//
// Thread-safety: as device code; callers place the barriers.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_SCAN_TILE_CUH_
#define NIBBLE_KERNELS_CUDA_LAYERS_SCAN_TILE_CUH_

#include "kernels/cuda/layers/mamba_kernels.h"
#include "kernels/cuda/layers/scan_warp.cuh"

namespace nibble::gpu::scan {

inline constexpr int kBlock = 16;  // tokens of a fragment
inline constexpr int kBlocks = kScanChunk / kBlock;

// Bytes from a row of `cols` elements to the next: an odd number of 16-byte pieces.
template <int kCols>
inline constexpr uint32_t kPitch = kCols * 2 + 16;

// Offsets of a lane's row of four matrices [8, 8] that cover [16, 16] of a tile.
//   A: left fragments; transposed, right fragments of two times eight columns from [depth, columns]
//   B: right fragments of two times eight columns from [columns, depth]; transposed, left fragments
//      from [depth, rows]
__device__ __forceinline__ uint32_t LaneOffsetA(uint32_t pitch) {
  const uint32_t lane = threadIdx.x % 32;
  return lane % 16 * pitch + lane / 16 * 16;
}
__device__ __forceinline__ uint32_t LaneOffsetB(uint32_t pitch) {
  const uint32_t lane = threadIdx.x % 32;
  return (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 16;
}

// Starts copies of a tile [kRows, kCols] by threads 0 … kThreads − 1. from: row 0, column 0. Rows
// outside of [first, end) and columns from `cols` on become zeros.
template <int kRows, int kCols, int kThreads>
__device__ __forceinline__ void LoadTile(uint32_t to, const uint16_t* from, int64_t stride,
                                         int first, int end, int cols, int thread) {
  constexpr int kPieces = kCols / 8;
  constexpr int kAll = kRows * kPieces;
#pragma unroll
  for (int i = 0; i < (kAll + kThreads - 1) / kThreads; ++i) {
    const int at = i * kThreads + thread;
    const int row = at / kPieces, piece = at % kPieces;
    const bool present = row >= first && row < end && piece * 8 < cols;
    if (kAll % kThreads == 0 || at < kAll) {
      CopyOrZero16(to + row * kPitch<kCols> + piece * 16,
                   present ? from + row * stride + piece * 8 : from, present);
    }
  }
}

// Writes the warp's rows [16, kCols], which StoreMatrices put into its tile at `from`, to global
// memory: `rows` of them, `cols` columns.
template <int kCols>
__device__ __forceinline__ void StoreRows(uint32_t from, uint16_t* to, int64_t stride, int rows,
                                          int cols) {
  constexpr int kPieces = kCols / 8;
  constexpr int kAll = kBlock * kPieces;
  SyncWarp();
#pragma unroll
  for (int i = 0; i < (kAll + 31) / 32; ++i) {
    const int at = i * 32 + static_cast<int>(threadIdx.x % 32);
    const int row = at / kPieces, piece = at % kPieces;
    if (row < rows && piece * 8 < cols && (kAll % 32 == 0 || at < kAll)) {
      *reinterpret_cast<uint4*>(to + row * stride + piece * 8) =
          LoadShared16(from + row * kPitch<kCols> + piece * 16);
    }
  }
  SyncWarp();
}
// Puts accumulators 2i and 2i + 1, as pairs, into columns 16i … of the warp's rows.
__device__ __forceinline__ void PutPairs(uint32_t tile, uint32_t lane_offset_a, int i, uint32_t w0,
                                         uint32_t w1, uint32_t w2, uint32_t w3) {
  StoreMatrices(tile + lane_offset_a + i * 32, w0, w1, w2, w3);
}

__device__ __forceinline__ const uint16_t* Bf16(const void* m) {
  return static_cast<const uint16_t*>(m);
}
__device__ __forceinline__ uint16_t* Bf16(void* m) { return static_cast<uint16_t*>(m); }

// A chunk of a request.
struct ChunkPlace {
  int64_t index;  // of the chunk
  int64_t row;    // of its first token
  int begin;      // of its first token, in the sequence
};
__device__ __forceinline__ ChunkPlace PlaceOfChunk(const ScanArgs& args, int64_t index) {
  const int64_t sequence = index / args.chunks_per_sequence;
  const int begin = static_cast<int>(index - sequence * args.chunks_per_sequence) * kScanChunk;
  return {index, sequence * args.length + begin, begin};
}

// Columns of a lane in x, y and their gradients.
struct LaneColumns {
  int head;
  int64_t col;
  int cols;
};
__device__ __forceinline__ LaneColumns ColumnsOf(const ScanArgs& args, int lane) {
  const int head = lane / args.slices;
  const int first = (lane - head * args.slices) * args.slice_cols;
  const int rest = args.head_dim - first;
  return {head, static_cast<int64_t>(head) * args.head_dim + first,
          rest < args.slice_cols ? rest : args.slice_cols};
}
__device__ __forceinline__ int64_t BColumn(const ScanArgs& args, int group) {
  return static_cast<int64_t>(args.heads) * args.head_dim +
         static_cast<int64_t>(group) * args.state;
}
__device__ __forceinline__ int64_t CColumn(const ScanArgs& args, int group) {
  return BColumn(args, args.groups + group);
}
__device__ __forceinline__ int64_t StateOffset(const ScanArgs& args, int64_t chunk, int lane) {
  return (chunk * args.lanes + lane) * (args.tile_cols * args.tile_state);
}
__device__ __forceinline__ const float* DecaysOf(const ScanArgs& args, int64_t chunk, int head) {
  return args.decays + (chunk * args.heads + head) * (ScanDecays::kArrays * kScanChunk);
}

// The exponents of one head in a chunk. exp(s_i − s_j) of tokens in blocks I > J is begin_i ·
// g_{J+1} … g_{I−1} · until_j, where g_b is `begin` of block b's last token: no factor exceeds one,
// and if one underflows so does the product. Inside a block it is 2^(d_i − d_j).
struct HeadDecays {
  float delta[kScanChunk];
  float high[kScanChunk];   // d
  float low[kScanChunk];    // the rounding error of `high`
  float begin[kScanChunk];  // 2^d
  float until[kScanChunk];  // 2^(d of the block's last token − d)

  __device__ __forceinline__ float OverBlock(int block) const {
    return begin[block * kBlock + kBlock - 1];
  }
  // Over blocks [first, end).
  __device__ __forceinline__ float OverBlocks(int first, int end) const {
    float product = 1;
    for (int b = first; b < end; ++b) product *= OverBlock(b);
    return product;
  }
};
// One token's part of it, on its way from global to shared memory, by whole warps.
struct TokenDecays {
  float delta = 0, high = 0, low = 0;

  __device__ __forceinline__ void Fetch(const float* decays, int token) {
    delta = __ldg(decays + ScanDecays::kDelta * kScanChunk + token);
    high = __ldg(decays + ScanDecays::kHigh * kScanChunk + token);
    low = __ldg(decays + ScanDecays::kLow * kScanChunk + token);
  }
  __device__ __forceinline__ void Publish(HeadDecays& to, int token) const {
    const unsigned last = static_cast<unsigned>(token) % kBlock ^ (kBlock - 1);
    const float end_high = FromLane(high, last), end_low = FromLane(low, last);
    to.delta[token] = delta;
    to.high[token] = high;
    to.low[token] = low;
    to.begin[token] = Exp2(high);
    to.until[token] = Exp2((end_high - high) + (end_low - low));
  }
};

// Rows of a chunk that contribute to the matrix after it, whether that still contains the matrix
// before it, and whether the latter is needed.
struct Step {
  int first, end;
  bool carries, stores;
};
__device__ __forceinline__ Step StepOf(const ScanChunkInfo& info, bool forward) {
  const bool carries = info.followed && info.entering == info.tokens;
  if (forward) {
    return {info.last_doc, info.followed ? info.tokens : info.last_doc, carries, info.entering > 0};
  }
  return {0, info.entering, carries, info.followed != 0};
}

// The first token of the chunk that token `t` depends on.
__device__ __forceinline__ int FirstSeen(const ScanArgs& args, const ChunkPlace& chunk, int tokens,
                                         int t) {
  if (args.doc_begin == nullptr) return 0;
  const int token = t < tokens ? t : tokens - 1;
  const int first = __ldg(args.doc_begin + chunk.row + token) - chunk.begin;
  return first > 0 ? first : 0;
}

}  // namespace nibble::gpu::scan

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_SCAN_TILE_CUH_
