// Attention's forward pass with the warp's matrix instructions, on every target: whole sequences
// where there is no warpgroup kernel, and continued sequences over caches.
//
// A block of 8 warps owns 128 query rows of one head, 16 per warp, and walks over blocks of 64 keys
// from the diagonal back to the first document, with an online softmax; keys and values are copied
// asynchronously one block ahead. Over caches, a query row is a token and a member of the key
// head's group, so that each cache is read once for all heads of a group.
#include "kernels/cuda/layers/attention_kernels.h"
#include "kernels/cuda/layers/attention_mma.cuh"

namespace nibble::gpu {
namespace {

constexpr int kRows = 128;
constexpr int kKeys = 64;
constexpr int kThreads = 256;

// The work of one block. Row i is token i / pack of the segment and query head i % pack of those
// that share the pointers.
struct Segment {
  const uint16_t* q;  // row i: q + i / pack · qkv_stride + i % pack · head_dim
  uint16_t* out;      // as q, with out_stride
  const uint16_t* k;  // [keys, kv_stride]
  const uint16_t* v;
  int64_t kv_stride;
  const int32_t* doc_begin;  // [tokens of the segment]; null: zeros
  float* lse;                // [tokens of the segment], pack = 1; null: not wanted
  int pack;
  int64_t rows;      // of the segment
  int64_t position;  // keys before the first token
  int64_t first;     // first row of the block; may be beyond rows
};

template <int kDim>
__device__ __forceinline__ Segment SequenceSegment(const ForwardArgs& args) {
  const AttentionDims& dims = args.dims;
  const int64_t tiles = (int64_t{dims.length} + kRows - 1) / kRows;
  // Longest first.
  const int64_t heads = dims.sequences * dims.heads;
  const int64_t tile = tiles - 1 - blockIdx.x / heads, pair = blockIdx.x % heads;
  const int64_t sequence = pair / dims.heads;
  const int head = static_cast<int>(pair % dims.heads);
  const int kv_head = head / (dims.heads / dims.kv_heads);
  const int64_t token = sequence * dims.length;
  const uint16_t* row = args.qkv + token * args.qkv_stride;
  return {.q = row + head * kDim,
          .out = args.out + token * args.out_stride + head * kDim,
          .k = row + (dims.heads + kv_head) * kDim,
          .v = row + (dims.heads + dims.kv_heads + kv_head) * kDim,
          .kv_stride = args.qkv_stride,
          .doc_begin = args.doc_begin == nullptr ? nullptr : args.doc_begin + token,
          .lse = args.lse + head * dims.sequences * dims.length + token,
          .pack = 1,
          .rows = dims.length,
          .position = 0,
          .first = tile * kRows};
}

template <int kDim>
__device__ __forceinline__ Segment CachedSegment(const ForwardArgs& args,
                                                 const CachedPieces& pieces) {
  const AttentionDims& dims = args.dims;
  const CachedPiece& piece = pieces.piece[blockIdx.y];
  const int group = dims.heads / dims.kv_heads;
  const int kv_head = static_cast<int>(blockIdx.x % dims.kv_heads);
  const int64_t cache = kv_head * piece.capacity * kDim;
  return {.q = args.qkv + piece.row * args.qkv_stride + kv_head * group * kDim,
          .out = args.out + piece.row * args.out_stride + kv_head * group * kDim,
          .k = static_cast<const uint16_t*>(piece.keys) + cache,
          .v = static_cast<const uint16_t*>(piece.values) + cache,
          .kv_stride = kDim,
          .doc_begin = nullptr,
          .lse = nullptr,
          .pack = group,
          .rows = int64_t{piece.rows} * group,
          .position = piece.position,
          .first = int64_t{blockIdx.x / dims.kv_heads} * kRows};
}

template <int kDim>
struct ForwardMemory {
  // Queries are at 0.
  static constexpr int kBlock = MmaTile<kDim>::Bytes(kKeys);
  static constexpr int kKey = MmaTile<kDim>::Bytes(kRows);  // two blocks
  static constexpr int kValue = kKey + 2 * kBlock;          // two blocks
  static constexpr int kBytes = kValue + 2 * kBlock;
};

template <int kDim>
__global__ void __launch_bounds__(kThreads) ForwardKernel(ForwardArgs args, CachedPieces pieces) {
  using Tile = MmaTile<kDim>;
  using Memory = ForwardMemory<kDim>;
  const Segment s =
      pieces.count == 0 ? SequenceSegment<kDim>(args) : CachedSegment<kDim>(args, pieces);
  if (s.first >= s.rows) return;
  const uint32_t memory = SharedAddress(DynamicShared());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int quad = lane % 4;

  // Query rows, packed rows as rows of a matrix.
  for (int i = thread; i < kRows * (kDim / 8); i += kThreads) {
    const int row = i / (kDim / 8), piece = i % (kDim / 8);
    const int64_t at = s.first + row;
    const bool present = at < s.rows;
    const uint16_t* from = s.q;
    if (present) from += at / s.pack * args.qkv_stride + at % s.pack * kDim;
    CopyOrZero16(memory + static_cast<uint32_t>(row * Tile::kPitch + piece * 16), from + piece * 8,
                 present);
  }
  const int64_t last_row = (s.first + kRows < s.rows ? s.first + kRows : s.rows) - 1;
  const int64_t first_token = s.first / s.pack, last_token = last_row / s.pack;
  const int64_t keys = s.position + last_token + 1;
  const int64_t first_begin = s.doc_begin == nullptr ? 0 : s.doc_begin[first_token];
  const int64_t last_begin = s.doc_begin == nullptr ? 0 : s.doc_begin[last_token];
  const int first_block = static_cast<int>(first_begin / kKeys);
  const int last_block = static_cast<int>((keys - 1) / kKeys);
  const auto load = [&](int block, int buffer) {
    const uint32_t offset = static_cast<uint32_t>(buffer * Memory::kBlock);
    const int64_t first = int64_t{block} * kKeys;
    Tile::template Load<kKeys, kThreads>(memory + Memory::kKey + offset, s.k, s.kv_stride, first,
                                         keys, thread);
    Tile::template Load<kKeys, kThreads>(memory + Memory::kValue + offset, s.v, s.kv_stride, first,
                                         keys, thread);
    CommitCopies();
  };

  // The lane's two rows: the keys that they may attend to.
  int64_t begin[2], position[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = s.first + warp * 16 + lane / 4 + half * 8;
    const int64_t token = (row < s.rows ? row : s.rows - 1) / s.pack;
    begin[half] = s.doc_begin == nullptr ? 0 : s.doc_begin[token];
    position[half] = s.position + token;
  }
  const float factor = args.dims.scale * kLog2E;
  SoftmaxRows rows;
  float o[kDim / 2];
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) o[i] = 0.0f;

  load(last_block, 0);
  for (int block = last_block, buffer = 0; block >= first_block; --block, buffer ^= 1) {
    if (block > first_block) {
      load(block - 1, buffer ^ 1);
      WaitForCopyGroups<1>();
    } else {
      WaitForCopyGroups<0>();
    }
    __syncthreads();
    const uint32_t offset = static_cast<uint32_t>(buffer * Memory::kBlock);
    float scores[kKeys / 2];
    Tile::template ScoresOf<kKeys>(scores, memory, warp * 16, memory + Memory::kKey + offset, lane);
    const int64_t first_key = int64_t{block} * kKeys;
    if (first_key + kKeys - 1 > s.position + first_token || first_key < last_begin) {
      VisibleColumns visible;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t column = first_key + 2 * quad;
        visible.first[half] = static_cast<int>(begin[half] - column);
        visible.last[half] = static_cast<int>(position[half] - column);
      }
      MaskScores(scores, visible);
    }
    float shrink[2];
    SoftmaxStep(scores, factor, rows, shrink);
    ScaleRows(o, shrink);
    uint32_t weights[kKeys / 4];
    RoundToFragments(scores, weights);
    Tile::template AddProduct<kKeys>(o, weights, memory + Memory::kValue + offset, lane);
    __syncthreads();
  }

  float inverse[2], lse[2], amax = 0.0f;
  FinishSoftmax(rows, inverse, lse);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = s.first + warp * 16 + lane / 4 + half * 8;
    const bool present = row < s.rows;
    uint16_t* to = s.out;
    if (present) to += row / s.pack * args.out_stride + row % s.pack * kDim;
    amax = StoreRow<kDim, true>(o, half, inverse[half], to, present, quad, amax);
    if (present && s.lse != nullptr && quad == 0) s.lse[row] = lse[half];
  }
  if (args.amax != nullptr) PublishAmax(args.amax, amax, lane);
}

// The new rows' keys and values, copied to the caches: a block per key head and 32 rows.
constexpr int kAppendRows = 32;
template <int kDim>
__global__ void __launch_bounds__(kThreads) AppendKernel(ForwardArgs args, CachedPieces pieces) {
  const AttentionDims& dims = args.dims;
  const CachedPiece& piece = pieces.piece[blockIdx.y];
  const int kv_head = static_cast<int>(blockIdx.x % dims.kv_heads);
  const int64_t first = int64_t{blockIdx.x / dims.kv_heads} * kAppendRows;
  constexpr int kPieces = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kAppendRows * kPieces * 2; i += kThreads) {
    const int64_t row = first + i / (2 * kPieces);
    const bool value = i / kPieces % 2 != 0;
    if (row >= piece.rows) return;
    const int head = dims.heads + (value ? dims.kv_heads : 0) + kv_head;
    const int column = i % kPieces * 8;
    const uint16_t* from = args.qkv + (piece.row + row) * args.qkv_stride + head * kDim + column;
    uint16_t* to = static_cast<uint16_t*>(value ? piece.values : piece.keys) +
                   (kv_head * piece.capacity + piece.position + row) * kDim + column;
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
  }
}

template <int kDim>
cudaError_t LaunchOf(const ForwardArgs& args, const CachedPieces& pieces, cudaStream_t stream) {
  constexpr int kBytes = ForwardMemory<kDim>::kBytes;
  const auto kernel = ForwardKernel<kDim>;
  const AttentionDims& dims = args.dims;
  if (pieces.count == 0) {
    const int64_t tiles = (int64_t{dims.length} + kRows - 1) / kRows;
    const dim3 grid(static_cast<unsigned>(dims.sequences * dims.heads * tiles));
    return Launch(kernel, grid, kThreads, kBytes, stream, args, pieces);
  }
  int most = 0;
  for (int i = 0; i < pieces.count; ++i) {
    if (pieces.piece[i].rows > most) most = pieces.piece[i].rows;
  }
  const auto grid = [&](int64_t rows, int per_block) {
    return dim3(static_cast<unsigned>((rows + per_block - 1) / per_block * dims.kv_heads),
                static_cast<unsigned>(pieces.count));
  };
  if (const cudaError_t error =
          Launch(AppendKernel<kDim>, grid(most, kAppendRows), kThreads, 0, stream, args, pieces);
      error != cudaSuccess) {
    return error;
  }
  const int group = dims.heads / dims.kv_heads;
  return Launch(kernel, grid(int64_t{most} * group, kRows), kThreads, kBytes, stream, args, pieces);
}

}  // namespace

cudaError_t LaunchMmaForward(const ForwardArgs& args, const CachedPieces& pieces,
                             cudaStream_t stream) {
  return MmaHeadDims::Call(args.dims.head_dim, [&](auto head_dim) {
    return LaunchOf<decltype(head_dim)::value>(args, pieces, stream);
  });
}

}  // namespace nibble::gpu
