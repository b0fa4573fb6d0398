// Attention for the shapes and types that have no tensor-core kernel, in FP32 arithmetic.
//
// A warp owns one row of what it writes: a query of a head (out, dq) or a key of a key head (dk,
// dv), and walks over the other side 32 at a time. In a step, lane i computes the score of key (or
// query) i; then each lane sums its own columns lane, lane + 32, … over the step. Each sum has one
// order, determined by the shape.
#include <cmath>

#include "kernels/cuda/layers/attention_rows.cuh"
#include "kernels/cuda/layers/attention_simple.h"

namespace nibble::gpu {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

__device__ __forceinline__ float Get(const float* x) { return *x; }
__device__ __forceinline__ float Get(const uint16_t* x) {
  return FromBits<float>(static_cast<uint32_t>(*x) << 16);
}
// Stores, and returns the value as rounded.
__device__ __forceinline__ float Set(float* to, float x) { return *to = x; }
__device__ __forceinline__ float Set(uint16_t* to, float x) {
  const uint32_t bits = Bf16Pair(x, 0.0f) & 0xffffu;
  *to = static_cast<uint16_t>(bits);
  return FromBits<float>(bits << 16);
}

template <class T>
__device__ __forceinline__ float Dot(const T* a, const T* b, int count) {
  float sum = 0.0f;
  for (int i = 0; i < count; ++i) sum = __fmaf_rn(Get(a + i), Get(b + i), sum);
  return sum;
}

// sum[i] += Σ_j weight of lane j · rows[j · stride + lane + 32 i], j < count.
template <int kPer, class T>
__device__ __forceinline__ void AddRows(float (&sum)[kPer], float weight, const T* rows,
                                        int64_t stride, int count, int dim, int lane) {
  for (int j = 0; j < count; ++j) {
    const float factor = OfLane(weight, j);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const int column = lane + 32 * i;
      if (column < dim) sum[i] = __fmaf_rn(factor, Get(rows + j * stride + column), sum[i]);
    }
  }
}

template <int kPer, class T>
__device__ __forceinline__ float StoreColumns(const float (&x)[kPer], float factor, T* to, int dim,
                                              int lane) {
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    const int column = lane + 32 * i;
    if (column < dim) largest = fmaxf(largest, Magnitude(Set(to + column, x[i] * factor)));
  }
  return largest;
}

__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) x = fmaxf(x, FromLane(x, mask));
  return x;
}
__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int mask = 1; mask < 32; mask *= 2) x += FromLane(x, mask);
  return x;
}

// One query of one head.
template <class T>
struct Query {
  const T* q;
  const T* k;  // [keys, kv_stride]
  const T* v;
  int64_t kv_stride;
  int64_t begin, end;  // keys that it attends to
  T* out;
  float* lse;
};

template <int kPer, class T>
__global__ void __launch_bounds__(kThreads) ForwardKernel(SimpleForward args, CachedPieces pieces) {
  const AttentionDims& dims = args.dims;
  const int lane = static_cast<int>(threadIdx.x) % 32, dim = dims.head_dim;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int head = static_cast<int>(index % dims.heads);
  const int64_t at = index / dims.heads;  // token of the request, or of the piece
  const int kv_head = head / (dims.heads / dims.kv_heads);
  const T* qkv = static_cast<const T*>(args.qkv);
  T* out = static_cast<T*>(args.out);
  Query<T> query = {};
  if (pieces.count != 0) {
    const CachedPiece& piece = pieces.piece[blockIdx.y];
    if (at >= piece.rows) return;
    const int64_t cache = kv_head * piece.capacity * dim;
    query = {.q = qkv + (piece.row + at) * args.qkv_stride + int64_t{head} * dim,
             .k = static_cast<const T*>(piece.keys) + cache,
             .v = static_cast<const T*>(piece.values) + cache,
             .kv_stride = dim,
             .begin = 0,
             .end = piece.position + at + 1,
             .out = out + (piece.row + at) * args.out_stride + int64_t{head} * dim,
             .lse = nullptr};
  } else {
    const int64_t tokens = dims.sequences * dims.length;
    if (at >= tokens) return;
    const T* first = qkv + at / dims.length * dims.length * args.qkv_stride;
    query = {.q = qkv + at * args.qkv_stride + int64_t{head} * dim,
             .k = first + int64_t{dims.heads + kv_head} * dim,
             .v = first + int64_t{dims.heads + dims.kv_heads + kv_head} * dim,
             .kv_stride = args.qkv_stride,
             .begin = args.doc_begin == nullptr ? 0 : args.doc_begin[at],
             .end = at % dims.length + 1,
             .out = out + at * args.out_stride + int64_t{head} * dim,
             .lse = args.lse + head * tokens + at};
  }

  float top = kEmptyTop, sum = 0.0f, o[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) o[i] = 0.0f;
  for (int64_t key = query.begin; key < query.end; key += 32) {
    const int count = static_cast<int>(query.end - key < 32 ? query.end - key : 32);
    const bool present = lane < count;
    float score = -INFINITY;
    if (present) score = Dot(query.q, query.k + (key + lane) * query.kv_stride, dim) * dims.scale;
    const float new_top = fmaxf(top, WarpMax(score));
    const float shrink = expf(top - new_top);
    top = new_top;
    const float weight = present ? expf(score - top) : 0.0f;
    sum = __fmaf_rn(sum, shrink, WarpSum(weight));
#pragma unroll
    for (int i = 0; i < kPer; ++i) o[i] *= shrink;
    AddRows<kPer>(o, weight, query.v + key * query.kv_stride, query.kv_stride, count, dim, lane);
  }
  const float amax = StoreColumns<kPer>(o, 1.0f / sum, query.out, dim, lane);
  if (query.lse != nullptr && lane == 0) *query.lse = top + logf(sum);
  if (args.amax != nullptr) PublishAmax(args.amax, amax, lane);
}

// The new rows' keys and values, copied to the caches: a block per row of a piece.
template <class T>
__global__ void __launch_bounds__(kThreads) AppendKernel(SimpleForward args, CachedPieces pieces) {
  const AttentionDims& dims = args.dims;
  const CachedPiece& piece = pieces.piece[blockIdx.y];
  const int64_t row = blockIdx.x;
  if (row >= piece.rows) return;
  const int width = dims.kv_heads * dims.head_dim;
  const T* from = static_cast<const T*>(args.qkv) + (piece.row + row) * args.qkv_stride +
                  int64_t{dims.heads} * dims.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < width; i += kThreads) {
    const int64_t to = (i / dims.head_dim * piece.capacity + piece.position + row) * dims.head_dim +
                       i % dims.head_dim;
    static_cast<T*>(piece.keys)[to] = from[i];
    static_cast<T*>(piece.values)[to] = from[width + i];
  }
}

// dq of one query of one head, and its dot of out and dout.
template <int kPer, class T>
__global__ void __launch_bounds__(kThreads) QueryKernel(SimpleBackward args) {
  const AttentionDims& dims = args.dims;
  const int lane = static_cast<int>(threadIdx.x) % 32, dim = dims.head_dim;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int head = static_cast<int>(index % dims.heads);
  const int64_t at = index / dims.heads, tokens = dims.sequences * dims.length;
  if (at >= tokens) return;
  const int kv_head = head / (dims.heads / dims.kv_heads);
  const T* qkv = static_cast<const T*>(args.qkv);
  const T* q = qkv + at * args.qkv_stride + int64_t{head} * dim;
  const T* first = qkv + at / dims.length * dims.length * args.qkv_stride;
  const T* k = first + int64_t{dims.heads + kv_head} * dim;
  const T* v = first + int64_t{dims.heads + dims.kv_heads + kv_head} * dim;
  const T* out = static_cast<const T*>(args.out) + at * args.out_stride + int64_t{head} * dim;
  const T* dout = static_cast<const T*>(args.dout) + at * args.dout_stride + int64_t{head} * dim;
  const float dot = Dot(out, dout, dim), lse = args.lse[head * tokens + at];
  if (lane == 0) args.dots[head * tokens + at] = dot;

  float dq[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) dq[i] = 0.0f;
  const int64_t end = at % dims.length + 1;
  for (int64_t key = args.doc_begin == nullptr ? 0 : args.doc_begin[at]; key < end; key += 32) {
    const int count = static_cast<int>(end - key < 32 ? end - key : 32);
    float ds = 0.0f;
    if (lane < count) {
      const int64_t row = (key + lane) * args.qkv_stride;
      const float p = expf(Dot(q, k + row, dim) * dims.scale - lse);
      ds = p * (Dot(dout, v + row, dim) - dot);
    }
    AddRows<kPer>(dq, ds, k + key * args.qkv_stride, args.qkv_stride, count, dim, lane);
  }
  StoreColumns<kPer>(dq, dims.scale,
                     static_cast<T*>(args.dqkv) + at * args.dqkv_stride + int64_t{head} * dim, dim,
                     lane);
}

// dk and dv of one key of one key head, after QueryKernel.
template <int kPer, class T>
__global__ void __launch_bounds__(kThreads) KeyKernel(SimpleBackward args) {
  const AttentionDims& dims = args.dims;
  const int lane = static_cast<int>(threadIdx.x) % 32, dim = dims.head_dim;
  const int64_t index = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int kv_head = static_cast<int>(index % dims.kv_heads), group = dims.heads / dims.kv_heads;
  const int64_t at = index / dims.kv_heads, tokens = dims.sequences * dims.length;
  if (at >= tokens) return;
  const int key = static_cast<int>(at % dims.length);
  const int64_t first = at - key;  // token
  const int64_t key_column = int64_t{dims.heads + kv_head} * dim;
  const int64_t value_column = key_column + int64_t{dims.kv_heads} * dim;
  const T* qkv = static_cast<const T*>(args.qkv) + first * args.qkv_stride;
  const T* k = qkv + key * args.qkv_stride + key_column;
  const T* v = qkv + key * args.qkv_stride + value_column;
  const int last = args.doc_begin == nullptr ? dims.length - 1
                                             : LastQuery(args.doc_begin + first, key, dims.length);

  float dk[kPer], dv[kPer];
#pragma unroll
  for (int i = 0; i < kPer; ++i) dk[i] = dv[i] = 0.0f;
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    const T* q = qkv + int64_t{head} * dim;
    const T* dout =
        static_cast<const T*>(args.dout) + first * args.dout_stride + int64_t{head} * dim;
    const int64_t row = head * tokens + first;  // of lse and dots
    for (int query = key; query <= last; query += 32) {
      const int count = last - query + 1 < 32 ? last - query + 1 : 32;
      float p = 0.0f, ds = 0.0f;
      if (lane < count) {
        const int64_t t = query + lane;
        p = expf(Dot(q + t * args.qkv_stride, k, dim) * dims.scale - args.lse[row + t]);
        ds = p * (Dot(dout + t * args.dout_stride, v, dim) - args.dots[row + t]);
      }
      AddRows<kPer>(dv, p, dout + query * args.dout_stride, args.dout_stride, count, dim, lane);
      AddRows<kPer>(dk, ds, q + query * args.qkv_stride, args.qkv_stride, count, dim, lane);
    }
  }
  T* dqkv = static_cast<T*>(args.dqkv) + at * args.dqkv_stride;
  StoreColumns<kPer>(dk, dims.scale, dqkv + key_column, dim, lane);
  StoreColumns<kPer>(dv, 1.0f, dqkv + value_column, dim, lane);
}

unsigned Blocks(int64_t warps) { return static_cast<unsigned>((warps + kWarps - 1) / kWarps); }

template <int kPer, class T>
cudaError_t ForwardOf(const SimpleForward& args, const CachedPieces& pieces, cudaStream_t stream) {
  const AttentionDims& dims = args.dims;
  if (pieces.count == 0) {
    return Launch(ForwardKernel<kPer, T>, dim3(Blocks(dims.sequences * dims.length * dims.heads)),
                  kThreads, 0, stream, args, pieces);
  }
  int most = 0;
  for (int i = 0; i < pieces.count; ++i) {
    if (pieces.piece[i].rows > most) most = pieces.piece[i].rows;
  }
  const unsigned count = static_cast<unsigned>(pieces.count);
  if (const cudaError_t error = Launch(AppendKernel<T>, dim3(static_cast<unsigned>(most), count),
                                       kThreads, 0, stream, args, pieces);
      error != cudaSuccess) {
    return error;
  }
  return Launch(ForwardKernel<kPer, T>, dim3(Blocks(int64_t{most} * dims.heads), count), kThreads,
                0, stream, args, pieces);
}

template <int kPer, class T>
cudaError_t BackwardOf(const SimpleBackward& args, cudaStream_t stream) {
  const AttentionDims& dims = args.dims;
  const int64_t tokens = dims.sequences * dims.length;
  if (const cudaError_t error = Launch(QueryKernel<kPer, T>, dim3(Blocks(tokens * dims.heads)),
                                       kThreads, 0, stream, args);
      error != cudaSuccess) {
    return error;
  }
  return Launch(KeyKernel<kPer, T>, dim3(Blocks(tokens * dims.kv_heads)), kThreads, 0, stream,
                args);
}

}  // namespace

cudaError_t LaunchSimpleForward(const SimpleForward& args, const CachedPieces& pieces,
                                cudaStream_t stream) {
  const int dim = args.dims.head_dim;
  if (dim < 1 || dim > kSimpleHeadDim) return cudaErrorInvalidValue;
  if (args.f32) {
    return dim <= 64    ? ForwardOf<2, float>(args, pieces, stream)
           : dim <= 256 ? ForwardOf<8, float>(args, pieces, stream)
                        : ForwardOf<32, float>(args, pieces, stream);
  }
  return dim <= 64    ? ForwardOf<2, uint16_t>(args, pieces, stream)
         : dim <= 256 ? ForwardOf<8, uint16_t>(args, pieces, stream)
                      : ForwardOf<32, uint16_t>(args, pieces, stream);
}

cudaError_t LaunchSimpleBackward(const SimpleBackward& args, cudaStream_t stream) {
  const int dim = args.dims.head_dim;
  if (dim < 1 || dim > kSimpleHeadDim) return cudaErrorInvalidValue;
  if (args.f32) {
    return dim <= 64    ? BackwardOf<2, float>(args, stream)
           : dim <= 256 ? BackwardOf<8, float>(args, stream)
                        : BackwardOf<32, float>(args, stream);
  }
  return dim <= 64    ? BackwardOf<2, uint16_t>(args, stream)
         : dim <= 256 ? BackwardOf<8, uint16_t>(args, stream)
                      : BackwardOf<32, uint16_t>(args, stream);
}

}  // namespace nibble::gpu
