// Rotary positions. Limit: one read and one write of q and k.
//
// A token's threads are arranged as pieces of 8 pairs × heads: a thread reads the cosines and sines
// of its piece once (from the second-level cache, which holds the table) and rotates it in every
// few heads, up to four heads of 2 · 16 bytes in flight. head_dims that are no multiple of 16, and
// unaligned rows, take a kernel that rotates one pair per thread.
#include <cmath>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/instructions.h"
#include "kernels/cuda/layers/rope_kernels.h"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kPairs = 8;  // of a thread's piece
constexpr int kHeadsAtOnce = 4;

template <class T>
struct Eight;
template <>
struct Eight<uint16_t> {
  uint4 words;
  __device__ __forceinline__ void Load(const uint16_t* from) {
    words = *reinterpret_cast<const uint4*>(from);
  }
  __device__ __forceinline__ void Store(uint16_t* to) const {
    *reinterpret_cast<uint4*>(to) = words;
  }
  __device__ __forceinline__ void Get(float (&x)[8]) const {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = FromBits<float>(w[i] << 16);
      x[2 * i + 1] = FromBits<float>(w[i] & 0xffff0000u);
    }
  }
  __device__ __forceinline__ void Set(const float (&x)[8]) {
    words = make_uint4(Bf16Pair(x[0], x[1]), Bf16Pair(x[2], x[3]), Bf16Pair(x[4], x[5]),
                       Bf16Pair(x[6], x[7]));
  }
};
template <>
struct Eight<float> {
  float4 low, high;
  __device__ __forceinline__ void Load(const float* from) {
    low = reinterpret_cast<const float4*>(from)[0];
    high = reinterpret_cast<const float4*>(from)[1];
  }
  __device__ __forceinline__ void Store(float* to) const {
    reinterpret_cast<float4*>(to)[0] = low;
    reinterpret_cast<float4*>(to)[1] = high;
  }
  __device__ __forceinline__ void Get(float (&x)[8]) const {
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = values[i];
  }
  __device__ __forceinline__ void Set(const float (&x)[8]) {
    low = make_float4(x[0], x[1], x[2], x[3]);
    high = make_float4(x[4], x[5], x[6], x[7]);
  }
};

// The row and position of token `index` of the launch, or of piece blockIdx.y.
struct RopeToken {
  int64_t row, position;
  bool present;
};
__device__ __forceinline__ RopeToken TokenAt(const RopeArgs& args, const RopePieces& pieces,
                                             int64_t index) {
  if (pieces.count != 0) {
    const RopePiece& piece = pieces.piece[blockIdx.y];
    return {piece.row + index, piece.position + index, index < piece.rows};
  }
  RopeToken token = {index, 0, index < args.rows};
  if (token.present) {
    token.position = index % args.length;
    if (args.doc_begin != nullptr) token.position -= args.doc_begin[index];
  }
  return token;
}

// `piece_threads`: half / 8; `head_threads`: threads of a token for each piece.
template <class T>
__global__ void __launch_bounds__(kThreads)
    PieceKernel(RopeArgs args, RopePieces pieces, int piece_threads, int head_threads) {
  const int token_threads = piece_threads * head_threads;
  const int tokens = kThreads / token_threads, thread = static_cast<int>(threadIdx.x);
  if (thread >= tokens * token_threads) return;
  const RopeToken token =
      TokenAt(args, pieces, int64_t{blockIdx.x} * tokens + thread / token_threads);
  if (!token.present) return;
  const int place = thread % token_threads;
  const int first_pair = place % piece_threads * kPairs, first_head = place / piece_threads;

  float cosines[kPairs], sines[kPairs];
  const int64_t angle = token.position * args.half + first_pair;
  Eight<float> table;
  table.Load(args.cosines + angle);
  table.Get(cosines);
  table.Load(args.sines + angle);
  table.Get(sines);
  if (args.inverse) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) sines[i] = -sines[i];
  }

  T* row = static_cast<T*>(args.qkv) + token.row * args.stride + first_pair;
  for (int head = first_head; head < args.heads; head += kHeadsAtOnce * head_threads) {
    Eight<T> low[kHeadsAtOnce], high[kHeadsAtOnce];
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      const int h = head + i * head_threads;
      if (h >= args.heads) continue;
      low[i].Load(row + int64_t{h} * 2 * args.half);
      high[i].Load(row + (int64_t{h} * 2 + 1) * args.half);
    }
#pragma unroll
    for (int i = 0; i < kHeadsAtOnce; ++i) {
      const int h = head + i * head_threads;
      if (h >= args.heads) continue;
      float a[kPairs], b[kPairs], c[kPairs], d[kPairs];
      low[i].Get(a);
      high[i].Get(b);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        c[j] = __fmaf_rn(a[j], cosines[j], -(b[j] * sines[j]));
        d[j] = __fmaf_rn(b[j], cosines[j], a[j] * sines[j]);
      }
      low[i].Set(c);
      high[i].Set(d);
      low[i].Store(row + int64_t{h} * 2 * args.half);
      high[i].Store(row + (int64_t{h} * 2 + 1) * args.half);
    }
  }
}

__device__ __forceinline__ float Get(const float* x) { return *x; }
__device__ __forceinline__ float Get(const uint16_t* x) {
  return FromBits<float>(static_cast<uint32_t>(*x) << 16);
}
__device__ __forceinline__ void Set(float* x, float value) { *x = value; }
__device__ __forceinline__ void Set(uint16_t* x, float value) {
  *x = static_cast<uint16_t>(Bf16Pair(value, 0.0f));
}

// A token per block.
template <class T>
__global__ void __launch_bounds__(kThreads) PairKernel(RopeArgs args, RopePieces pieces) {
  const RopeToken token = TokenAt(args, pieces, blockIdx.x);
  if (!token.present) return;
  T* row = static_cast<T*>(args.qkv) + token.row * args.stride;
  for (int i = static_cast<int>(threadIdx.x); i < args.heads * args.half; i += kThreads) {
    const int head = i / args.half, pair = i % args.half;
    T* low = row + int64_t{head} * 2 * args.half + pair;
    T* high = low + args.half;
    const float cosine = args.cosines[token.position * args.half + pair];
    const float table_sine = args.sines[token.position * args.half + pair];
    const float sine = args.inverse ? -table_sine : table_sine;
    const float a = Get(low), b = Get(high);
    Set(low, __fmaf_rn(a, cosine, -(b * sine)));
    Set(high, __fmaf_rn(b, cosine, a * sine));
  }
}

__global__ void __launch_bounds__(kThreads)
    TableKernel(float* cosines, float* sines, int64_t count, int half, double theta) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const double rate = pow(theta, -static_cast<double>(i % half) / half);
  const double angle = static_cast<double>(i / half) * rate;
  cosines[i] = static_cast<float>(cos(angle));
  sines[i] = static_cast<float>(sin(angle));
}

unsigned Blocks(int64_t count, int64_t per_block) {
  return static_cast<unsigned>((count + per_block - 1) / per_block);
}

template <class T>
cudaError_t LaunchOf(const RopeArgs& args, const RopePieces& pieces, cudaStream_t stream) {
  int64_t most = args.rows;
  if (pieces.count != 0) {
    most = 0;
    for (int i = 0; i < pieces.count; ++i) {
      if (pieces.piece[i].rows > most) most = pieces.piece[i].rows;
    }
  }
  const unsigned launches = pieces.count == 0 ? 1 : static_cast<unsigned>(pieces.count);
  const int piece_threads = args.half / kPairs;
  const bool whole = args.half % kPairs == 0 && piece_threads <= kThreads &&
                     args.stride * static_cast<int64_t>(sizeof(T)) % 16 == 0 &&
                     reinterpret_cast<uintptr_t>(args.qkv) % 16 == 0;
  if (!whole) {
    return Launch(PairKernel<T>, dim3(static_cast<unsigned>(most), launches), kThreads, 0, stream,
                  args, pieces);
  }
  const int head_threads = piece_threads >= 32 ? 1 : 32 / piece_threads;
  const int tokens = kThreads / (piece_threads * head_threads);
  return Launch(PieceKernel<T>, dim3(Blocks(most, tokens), launches), kThreads, 0, stream, args,
                pieces, piece_threads, head_threads);
}

}  // namespace

cudaError_t LaunchRope(const RopeArgs& args, const RopePieces& pieces, cudaStream_t stream) {
  return args.f32 ? LaunchOf<float>(args, pieces, stream)
                  : LaunchOf<uint16_t>(args, pieces, stream);
}

cudaError_t LaunchRopeTable(float* cosines, float* sines, int64_t positions, int half, double theta,
                            cudaStream_t stream) {
  const int64_t count = positions * half;
  return Launch(TableKernel, dim3(Blocks(count, kThreads)), kThreads, 0, stream, cosines, sines,
                count, half, theta);
}

}  // namespace nibble::gpu
