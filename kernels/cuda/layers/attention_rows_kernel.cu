// Prepares each row for attention's backward pass: Σ out · dout, lse in units of log2, and the last
// query that attends to a key. One read of out and dout; at the copy rate.
//
// A block takes 128 rows of one head: 8 lanes per row, each 16 bytes at a time, several rows in
// flight. Blocks of neighbouring heads are neighbours, so that whole lines are read.
#include <cmath>

#include "kernels/cuda/layers/attention_kernels.h"
#include "kernels/cuda/layers/attention_rows.cuh"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 8;                       // of a row
constexpr int kRowsAtOnce = kThreads / kLanes;  // of a block

__device__ __forceinline__ float DotOfPairs(uint4 a, uint4 b, float sum) {
  const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = __fmaf_rn(FromBits<float>(x[i] << 16), FromBits<float>(y[i] << 16), sum);
    sum = __fmaf_rn(FromBits<float>(x[i] & 0xffff0000u), FromBits<float>(y[i] & 0xffff0000u), sum);
  }
  return sum;
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) RowsKernel(BackwardArgs args) {
  const AttentionDims& dims = args.dims;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t block = blockIdx.x, threads = int64_t{gridDim.x} * kThreads;
  const int64_t tiles = dims.padded() / kTokenTile;
  const int head = static_cast<int>(block % dims.heads);
  const int64_t tile = block / dims.heads % tiles, sequence = block / dims.heads / tiles;
  const int64_t token = sequence * dims.length;

  if (args.turns != nullptr) {
    const int64_t turns = dims.sequences * dims.heads * (dims.padded() / 64);
    for (int64_t i = block * kThreads + thread; i < turns; i += threads) args.turns[i] = 0;
  }
  if (head == 0 && thread < kTokenTile) {
    const int64_t t = tile * kTokenTile + thread;
    if (t < dims.length) {
      args.last_query[token + t] =
          args.doc_begin == nullptr
              ? dims.length - 1
              : LastQuery(args.doc_begin + token, static_cast<int>(t), dims.length);
    }
  }

  constexpr int kPieces = kDim / 8;
  constexpr int kRounds = (kPieces + kLanes - 1) / kLanes;
  constexpr int kRowsPerGroup = kTokenTile / kRowsAtOnce;
  const int lane = thread % kLanes;
  float sum[kRowsPerGroup];
#pragma unroll
  for (int i = 0; i < kRowsPerGroup; ++i) {
    const int64_t t = tile * kTokenTile + i * kRowsAtOnce + thread / kLanes;
    sum[i] = 0.0f;
    if (t >= dims.length) continue;
    const uint16_t* out = args.out + (token + t) * args.out_stride + head * kDim;
    const uint16_t* dout = args.dout + (token + t) * args.dout_stride + head * kDim;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int piece = round * kLanes + lane;
      if (kPieces % kLanes != 0 && piece >= kPieces) continue;
      sum[i] = DotOfPairs(*reinterpret_cast<const uint4*>(out + piece * 8),
                          *reinterpret_cast<const uint4*>(dout + piece * 8), sum[i]);
    }
  }
  const int64_t row = (sequence * dims.heads + head) * dims.padded() + tile * kTokenTile;
  const float* lse = args.lse + head * dims.sequences * dims.length + token;
#pragma unroll
  for (int i = 0; i < kRowsPerGroup; ++i) {
    float total = sum[i];
    total += FromLane(total, 1);
    total += FromLane(total, 2);
    total += FromLane(total, 4);
    const int64_t at = i * kRowsAtOnce + thread / kLanes, t = tile * kTokenTile + at;
    if (lane != 0) continue;
    args.dots[row + at] = total;
    // Beyond the sequence, 2^(score − infinity) = 0 leaves gradients alone.
    args.lse2[row + at] = t < dims.length ? lse[t] * kLog2E : INFINITY;
  }
}

template <int kDim>
cudaError_t LaunchOf(const BackwardArgs& args, cudaStream_t stream) {
  const AttentionDims& dims = args.dims;
  const int64_t blocks = dims.sequences * dims.heads * (dims.padded() / kTokenTile);
  return Launch(RowsKernel<kDim>, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, args);
}

}  // namespace

cudaError_t LaunchBackwardRows(const BackwardArgs& args, cudaStream_t stream) {
  return MmaHeadDims::Call(args.dims.head_dim, [&](auto head_dim) {
    return LaunchOf<decltype(head_dim)::value>(args, stream);
  });
}

}  // namespace nibble::gpu
