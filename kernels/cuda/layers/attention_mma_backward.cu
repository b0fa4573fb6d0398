// Attention's backward pass with the warp's matrix instructions, on every target, in two passes
// that each own what they write, so that every sum has one order: a block of 64 keys sums dk and dv
// over the query heads of its group and their queries; a block of 64 queries sums dq over its keys.
// That multiplies q·k and dout·v twice: 7 matmuls instead of 5.
#include "kernels/cuda/layers/attention_kernels.h"
#include "kernels/cuda/layers/attention_mma.cuh"

namespace nibble::gpu {
namespace {

constexpr int kTile = 64;  // queries and keys
constexpr int kThreads = 128;

struct Place {
  int64_t tile;  // of the sequence
  int64_t sequence;
  int head;  // query head or key head
};
__device__ __forceinline__ Place PlaceOf(int heads) {
  return {static_cast<int64_t>(blockIdx.y), static_cast<int64_t>(blockIdx.x / heads),
          static_cast<int>(blockIdx.x % heads)};
}

template <int kDim>
struct BackwardMemory {
  static constexpr int kBlock = MmaTile<kDim>::Bytes(kTile);
  // Two tiles that stay, and two pairs of tiles that are walked over.
  static constexpr int kWalked = 2 * kBlock;
  static constexpr int kBytes = 6 * kBlock;
};

// dk and dv of 64 keys of one key head; 16 keys per warp. Scores are transposed: rows are keys.
template <int kDim>
__global__ void __launch_bounds__(kThreads) KeyKernel(BackwardArgs args) {
  using Tile = MmaTile<kDim>;
  using Memory = BackwardMemory<kDim>;
  const AttentionDims& dims = args.dims;
  const Place place = PlaceOf(dims.kv_heads);
  const uint32_t memory = SharedAddress(DynamicShared());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int quad = lane % 4, group = dims.heads / dims.kv_heads;
  const int64_t token = place.sequence * dims.length, first_key = place.tile * kTile;
  const uint16_t* qkv = args.qkv + token * args.qkv_stride;
  const int key_column = (dims.heads + place.head) * kDim;
  const int value_column = key_column + dims.kv_heads * kDim;
  Tile::template Load<kTile, kThreads>(memory, qkv + key_column, args.qkv_stride, first_key,
                                       dims.length, thread);
  Tile::template Load<kTile, kThreads>(memory + Memory::kBlock, qkv + value_column, args.qkv_stride,
                                       first_key, dims.length, thread);
  CommitCopies();

  const int32_t* last_query = args.last_query + token;
  const int64_t last_key = (first_key + kTile < dims.length ? first_key + kTile : dims.length) - 1;
  const int first_tile = static_cast<int>(place.tile);
  const int tiles = static_cast<int>(last_query[last_key] / kTile) - first_tile + 1;
  const int64_t all_see = last_query[first_key];  // queries up to it attend to all keys so far
  int64_t key[2], last[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    key[half] = first_key + warp * 16 + lane / 4 + half * 8;
    last[half] = last_query[key[half] < dims.length ? key[half] : dims.length - 1];
  }
  const auto load = [&](int step, int buffer) {
    const int head = place.head * group + step / tiles;
    const int64_t first_query = int64_t{first_tile + step % tiles} * kTile;
    const uint32_t to =
        memory + static_cast<uint32_t>(Memory::kWalked + buffer * 2 * Memory::kBlock);
    Tile::template Load<kTile, kThreads>(to, qkv + head * kDim, args.qkv_stride, first_query,
                                         dims.length, thread);
    Tile::template Load<kTile, kThreads>(to + Memory::kBlock,
                                         args.dout + token * args.dout_stride + head * kDim,
                                         args.dout_stride, first_query, dims.length, thread);
    CommitCopies();
  };

  const float factor = dims.scale * kLog2E;
  float dk[kDim / 2], dv[kDim / 2];
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) dk[i] = dv[i] = 0.0f;
  const int steps = group * tiles;
  load(0, 0);
  for (int step = 0; step < steps; ++step) {
    const int buffer = step % 2;
    if (step + 1 < steps) {
      load(step + 1, buffer ^ 1);
      WaitForCopyGroups<1>();
    } else {
      WaitForCopyGroups<0>();
    }
    __syncthreads();
    const uint32_t q =
        memory + static_cast<uint32_t>(Memory::kWalked + buffer * 2 * Memory::kBlock);
    const uint32_t dout = q + Memory::kBlock;
    const int head = place.head * group + step / tiles;
    const int64_t first_query = int64_t{first_tile + step % tiles} * kTile;
    // The lane's columns of lse2 and dots: queries first_query + 8j + 2 quad and the next one.
    const int64_t rows =
        (place.sequence * dims.heads + head) * dims.padded() + first_query + 2 * quad;
    float p[kTile / 2], ds[kTile / 2];
    Tile::template ScoresOf<kTile>(p, memory, warp * 16, q, lane);
    Tile::template ScoresOf<kTile>(ds, memory + Memory::kBlock, warp * 16, dout, lane);
#pragma unroll
    for (int i = 0; i < kTile / 2; i += 4) {
      const float2 lse2 = *reinterpret_cast<const float2*>(args.lse2 + rows + 2 * i);
      const float2 dot = *reinterpret_cast<const float2*>(args.dots + rows + 2 * i);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        p[i + e] = Exp2(__fmaf_rn(p[i + e], factor, e % 2 == 0 ? -lse2.x : -lse2.y));
        ds[i + e] = p[i + e] * (ds[i + e] - (e % 2 == 0 ? dot.x : dot.y));
      }
    }
    if (first_query < first_key + kTile - 1 || first_query + kTile - 1 > all_see) {
      VisibleColumns visible;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t column = first_query + 2 * quad;
        visible.first[half] = static_cast<int>(key[half] - column);
        visible.last[half] = static_cast<int>(last[half] - column);
      }
      MaskToZero(p, visible);
      MaskToZero(ds, visible);
    }
    uint32_t weights[kTile / 4];
    RoundToFragments(p, weights);
    Tile::template AddProduct<kTile>(dv, weights, dout, lane);
    RoundToFragments(ds, weights);
    Tile::template AddProduct<kTile>(dk, weights, q, lane);
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool present = key[half] < dims.length;
    uint16_t* to = args.dqkv + (token + (present ? key[half] : 0)) * args.dqkv_stride;
    StoreRow<kDim, false>(dk, half, dims.scale, to + key_column, present, quad, 0.0f);
    StoreRow<kDim, false>(dv, half, 1.0f, to + value_column, present, quad, 0.0f);
  }
}

// dq of 64 queries of one head; 16 queries per warp.
template <int kDim>
__global__ void __launch_bounds__(kThreads) QueryKernel(BackwardArgs args) {
  using Tile = MmaTile<kDim>;
  using Memory = BackwardMemory<kDim>;
  const AttentionDims& dims = args.dims;
  Place place = PlaceOf(dims.heads);
  place.tile = gridDim.y - 1 - place.tile;  // longest first
  const uint32_t memory = SharedAddress(DynamicShared());
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  const int quad = lane % 4;
  const int64_t token = place.sequence * dims.length, first_query = place.tile * kTile;
  const uint16_t* qkv = args.qkv + token * args.qkv_stride;
  const int kv_head = place.head / (dims.heads / dims.kv_heads);
  const int key_column = (dims.heads + kv_head) * kDim;
  const int value_column = key_column + dims.kv_heads * kDim;
  Tile::template Load<kTile, kThreads>(memory, qkv + place.head * kDim, args.qkv_stride,
                                       first_query, dims.length, thread);
  Tile::template Load<kTile, kThreads>(memory + Memory::kBlock,
                                       args.dout + token * args.dout_stride + place.head * kDim,
                                       args.dout_stride, first_query, dims.length, thread);
  CommitCopies();

  const int32_t* doc_begin = args.doc_begin == nullptr ? nullptr : args.doc_begin + token;
  const int64_t last_row =
      (first_query + kTile < dims.length ? first_query + kTile : dims.length) - 1;
  const int64_t last_begin = doc_begin == nullptr ? 0 : doc_begin[last_row];
  const int first_block =
      static_cast<int>((doc_begin == nullptr ? 0 : doc_begin[first_query]) / kTile);
  const int last_block = static_cast<int>(place.tile);
  int64_t query[2], begin[2];
  float lse2[2], dot[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    query[half] = first_query + warp * 16 + lane / 4 + half * 8;
    const int64_t inside = query[half] < dims.length ? query[half] : dims.length - 1;
    begin[half] = doc_begin == nullptr ? 0 : doc_begin[inside];
    const int64_t row = (place.sequence * dims.heads + place.head) * dims.padded() + query[half];
    lse2[half] = args.lse2[row];
    dot[half] = args.dots[row];
  }
  const auto load = [&](int block, int buffer) {
    const uint32_t to =
        memory + static_cast<uint32_t>(Memory::kWalked + buffer * 2 * Memory::kBlock);
    Tile::template Load<kTile, kThreads>(to, qkv + key_column, args.qkv_stride,
                                         int64_t{block} * kTile, dims.length, thread);
    Tile::template Load<kTile, kThreads>(to + Memory::kBlock, qkv + value_column, args.qkv_stride,
                                         int64_t{block} * kTile, dims.length, thread);
    CommitCopies();
  };

  const float factor = dims.scale * kLog2E;
  float dq[kDim / 2];
#pragma unroll
  for (int i = 0; i < kDim / 2; ++i) dq[i] = 0.0f;
  load(first_block, 0);
  for (int block = first_block, buffer = 0; block <= last_block; ++block, buffer ^= 1) {
    if (block < last_block) {
      load(block + 1, buffer ^ 1);
      WaitForCopyGroups<1>();
    } else {
      WaitForCopyGroups<0>();
    }
    __syncthreads();
    const uint32_t k =
        memory + static_cast<uint32_t>(Memory::kWalked + buffer * 2 * Memory::kBlock);
    float p[kTile / 2], ds[kTile / 2];
    Tile::template ScoresOf<kTile>(p, memory, warp * 16, k, lane);
    Tile::template ScoresOf<kTile>(ds, memory + Memory::kBlock, warp * 16, k + Memory::kBlock,
                                   lane);
#pragma unroll
    for (int i = 0; i < kTile / 2; ++i) {
      const int half = i % 4 / 2;
      p[i] = Exp2(__fmaf_rn(p[i], factor, -lse2[half]));
      ds[i] = p[i] * (ds[i] - dot[half]);
    }
    const int64_t first_key = int64_t{block} * kTile;
    if (first_key + kTile - 1 > first_query || first_key < last_begin) {
      VisibleColumns visible;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int64_t column = first_key + 2 * quad;
        visible.first[half] = static_cast<int>(begin[half] - column);
        visible.last[half] = static_cast<int>(query[half] - column);
      }
      MaskToZero(ds, visible);
    }
    uint32_t weights[kTile / 4];
    RoundToFragments(ds, weights);
    Tile::template AddProduct<kTile>(dq, weights, k, lane);
    __syncthreads();
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool present = query[half] < dims.length;
    uint16_t* to = args.dqkv + (token + (present ? query[half] : 0)) * args.dqkv_stride;
    StoreRow<kDim, false>(dq, half, dims.scale, to + place.head * kDim, present, quad, 0.0f);
  }
}

template <int kDim>
cudaError_t LaunchOf(const BackwardArgs& args, cudaStream_t stream) {
  constexpr int kBytes = BackwardMemory<kDim>::kBytes;
  const AttentionDims& dims = args.dims;
  const auto grid = [&](int heads) {
    return dim3(static_cast<unsigned>(dims.sequences * heads),
                static_cast<unsigned>((int64_t{dims.length} + kTile - 1) / kTile));
  };
  if (const cudaError_t error =
          Launch(KeyKernel<kDim>, grid(dims.kv_heads), kThreads, kBytes, stream, args);
      error != cudaSuccess) {
    return error;
  }
  return Launch(QueryKernel<kDim>, grid(dims.heads), kThreads, kBytes, stream, args);
}

}  // namespace

cudaError_t LaunchMmaBackward(const BackwardArgs& args, cudaStream_t stream) {
  return MmaHeadDims::Call(args.dims.head_dim, [&](auto head_dim) {
    return LaunchOf<decltype(head_dim)::value>(args, stream);
  });
}

}  // namespace nibble::gpu
