// Decoding: the convolution and the recurrence over the next tokens of sequences, from the window
// or state of each. Arithmetic per token is the same whatever the number of tokens in a request.
//
// Convolution: a thread has one channel and a run of tokens.
//
// Recurrence: a thread block has 64 columns of one head of one sequence and their whole state in
// registers, 32 elements a thread, for all tokens of the request; inputs of eight tokens at a time
// are in shared memory, as are the partial sums of y. One token reads and writes the state once,
// which is nearly all of the traffic: 8 bytes per element, 64 MB for 8 sequences of 128 heads of 64
// with state 128, 15 µs of a memory that moves 4.26 TB/s. States of more than 128 rows stay in
// memory.
#include "kernels/cuda/layers/mamba_conv.cuh"
#include "kernels/cuda/layers/mamba_kernels.h"
#include "kernels/cuda/layers/scan_warp.cuh"

namespace nibble::gpu {
namespace {

using namespace conv;
using scan::FromLane;
using scan::Narrow;

constexpr int kConvThreads = 128;
constexpr int kConvRun = 32;

template <class T>
__global__ __launch_bounds__(kConvThreads) void ConvTokensKernel(
    const __grid_constant__ ConvArgs args, const __grid_constant__ Pieces pieces, unsigned across) {
  const Piece& piece = pieces.piece[blockIdx.y];
  const int64_t channel = int64_t{blockIdx.x % across} * kConvThreads + threadIdx.x;
  const int64_t begin = int64_t{blockIdx.x / across} * kConvRun;
  if (begin >= piece.rows || channel >= args.channels) return;
  const int64_t end = begin + kConvRun < piece.rows ? begin + kConvRun : piece.rows;
  const int skip = kMostTaps - args.width, window_rows = args.width - 1;
  const T* in = static_cast<const T*>(args.in) + piece.row * args.in_stride + channel;
  T* out = static_cast<T*>(args.out) + piece.row * args.out_stride + channel;
  float* window = piece.state + channel;
  // Token t of the piece; before it, the window.
  const auto input = [&](int64_t t) {
    return t >= 0 ? Widen(in[t * args.in_stride]) : window[(window_rows + t) * args.channels];
  };
  const Filter<1, kMostTaps> filter(args, channel, skip);
  float past[kMostTaps][1] = {};
#pragma unroll
  for (int i = 0; i < kMostTaps - 1; ++i) {
    if (i >= skip) past[i][0] = input(begin - (kMostTaps - 1 - i));
  }
  for (int64_t first = begin; first < end; first += kAhead) {
    Raw<T, 1> raw[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i < end) raw[i] = LoadRaw<T, 1>(in + (first + i) * args.in_stride);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= end) continue;
      Advance(past, raw[i]);
      Narrow(out[(first + i) * args.out_stride], Silu(Convolve(filter, past, 0, skip)));
      Shift(past);
    }
  }
  // Only the first run reads the window. Oldest first: a row is read before it is overwritten.
  if (begin != 0) return;
  for (int w = 0; w < window_rows; ++w) {
    window[w * args.channels] = input(piece.rows - window_rows + w);
  }
}

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCols = 64;                       // of a thread block
constexpr int kQuads = kCols / 4;               // a thread has four neighbouring columns
constexpr int kRowThreads = kThreads / kQuads;  // and every kRowThreads-th row of the state
constexpr int kRows = 8;
constexpr int kMostState = kRowThreads * kRows;
constexpr int kStage = 8;  // tokens

// Δ and exp(Δ A) of a token, in FP64 as on the CPU.
struct TokenStep {
  float delta, decay;
};
__device__ __forceinline__ TokenStep StepOfToken(const ScanTokensArgs& args, int64_t row,
                                                 int head) {
  const double raw = scan::ElementAt(args.dt, args.f32, row * args.dt_stride + head);
  const double x = raw + args.dt_bias[head];
  const double delta = (x > 0 ? x : 0.0) + log1p(exp(-(x < 0 ? -x : x)));
  return {static_cast<float>(delta),
          static_cast<float>(exp(delta * -exp(static_cast<double>(args.a_log[head]))))};
}

// Four elements, those beyond `count` zeros. kWhole: there are four, and they are aligned.
template <bool kWhole>
__device__ __forceinline__ float4 LoadFour(const float* from, int count) {
  if constexpr (kWhole) {
    return count > 0 ? *reinterpret_cast<const float4*>(from) : make_float4(0, 0, 0, 0);
  } else {
    return make_float4(count > 0 ? from[0] : 0.0f, count > 1 ? from[1] : 0.0f,
                       count > 2 ? from[2] : 0.0f, count > 3 ? from[3] : 0.0f);
  }
}
template <bool kWhole>
__device__ __forceinline__ void StoreFour(float* to, int count, const float4& x) {
  if constexpr (kWhole) {
    if (count > 0) *reinterpret_cast<float4*>(to) = x;
  } else {
    if (count > 0) to[0] = x.x;
    if (count > 1) to[1] = x.y;
    if (count > 2) to[2] = x.z;
    if (count > 3) to[3] = x.w;
  }
}

template <class T, bool kWhole>
__global__ __launch_bounds__(kThreads) void ScanTokensKernel(
    const __grid_constant__ ScanTokensArgs args, const __grid_constant__ Pieces pieces,
    unsigned parts) {
  struct Inputs {
    float b[kMostState], c[kMostState];
    float x[kCols];
  };
  __shared__ Inputs inputs[kStage];
  __shared__ TokenStep steps[kStage];
  __shared__ float4 sums[kStage][kWarps][kQuads];
  const Piece& piece = pieces.piece[blockIdx.y];
  const int head = static_cast<int>(blockIdx.x / parts);
  const int col = static_cast<int>(blockIdx.x % parts) * kCols;
  const int group = head / (args.heads / args.groups);
  const int thread = static_cast<int>(threadIdx.x);
  const int quad = thread % kQuads, row_thread = thread / kQuads;
  const int own_cols = args.head_dim - (col + quad * 4);
  const int64_t x_column = static_cast<int64_t>(head) * args.head_dim + col;
  const int64_t b_column =
      static_cast<int64_t>(args.heads) * args.head_dim + static_cast<int64_t>(group) * args.state;
  const int64_t c_offset = static_cast<int64_t>(args.groups) * args.state;
  const float d = args.d[head];
  float* state =
      piece.state + static_cast<int64_t>(head) * args.state * args.head_dim + col + quad * 4;
  float4 s[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int n = r * kRowThreads + row_thread;
    s[r] = LoadFour<kWhole>(state + static_cast<int64_t>(n) * args.head_dim,
                            n < args.state ? own_cols : 0);
  }
  for (int64_t first = 0; first < piece.rows; first += kStage) {
    const int count = static_cast<int>(piece.rows - first < kStage ? piece.rows - first : kStage);
    const T* xbc = static_cast<const T*>(args.xbc) + (piece.row + first) * args.xbc_stride;
    for (int at = thread; at < count * kMostState; at += kThreads) {
      const int t = at / kMostState, n = at % kMostState;
      const T* from = xbc + t * args.xbc_stride + b_column + n;
      inputs[t].b[n] = n < args.state ? Widen(from[0]) : 0.0f;
      inputs[t].c[n] = n < args.state ? Widen(from[c_offset]) : 0.0f;
    }
    for (int at = thread; at < count * kCols; at += kThreads) {
      const int t = at / kCols, p = at % kCols;
      inputs[t].x[p] =
          col + p < args.head_dim ? Widen(xbc[t * args.xbc_stride + x_column + p]) : 0.0f;
    }
    if (thread < count) steps[thread] = StepOfToken(args, piece.row + first + thread, head);
    __syncthreads();
    for (int t = 0; t < count; ++t) {
      const Inputs& in = inputs[t];
      const TokenStep step = steps[t];
      const float4 x = *reinterpret_cast<const float4*>(in.x + quad * 4);
      const float4 u =
          make_float4(x.x * step.delta, x.y * step.delta, x.z * step.delta, x.w * step.delta);
      float4 y = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float b = in.b[r * kRowThreads + row_thread], c = in.c[r * kRowThreads + row_thread];
        s[r].x = fmaf(u.x, b, s[r].x * step.decay);
        s[r].y = fmaf(u.y, b, s[r].y * step.decay);
        s[r].z = fmaf(u.z, b, s[r].z * step.decay);
        s[r].w = fmaf(u.w, b, s[r].w * step.decay);
        y.x = fmaf(s[r].x, c, y.x);
        y.y = fmaf(s[r].y, c, y.y);
        y.z = fmaf(s[r].z, c, y.z);
        y.w = fmaf(s[r].w, c, y.w);
      }
      y.x += FromLane(y.x, 16u);
      y.y += FromLane(y.y, 16u);
      y.z += FromLane(y.z, 16u);
      y.w += FromLane(y.w, 16u);
      if (thread % 32 < kQuads) sums[t][thread / 32][quad] = y;
    }
    __syncthreads();
    for (int at = thread; at < count * kCols; at += kThreads) {
      const int t = at / kCols, p = at % kCols;
      if (col + p >= args.head_dim) continue;
      float y = inputs[t].x[p] * d;
      for (int warp = 0; warp < kWarps; ++warp) {
        y += reinterpret_cast<const float*>(sums[t][warp])[p];
      }
      Narrow(static_cast<T*>(args.y)[(piece.row + first + t) * args.y_stride + x_column + p], y);
    }
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int n = r * kRowThreads + row_thread;
    StoreFour<kWhole>(state + static_cast<int64_t>(n) * args.head_dim,
                      n < args.state ? own_cols : 0, s[r]);
  }
}

// States of any size, in memory: a thread has one column.
constexpr int kLargeThreads = 64;
template <class T>
__global__ __launch_bounds__(kLargeThreads) void LargeStateTokensKernel(
    const __grid_constant__ ScanTokensArgs args, const __grid_constant__ Pieces pieces,
    unsigned parts) {
  const Piece& piece = pieces.piece[blockIdx.y];
  const int head = static_cast<int>(blockIdx.x / parts);
  const int p = static_cast<int>(blockIdx.x % parts * kLargeThreads + threadIdx.x);
  if (p >= args.head_dim) return;
  const int group = head / (args.heads / args.groups);
  const int64_t x_column = static_cast<int64_t>(head) * args.head_dim + p;
  const int64_t b_column =
      static_cast<int64_t>(args.heads) * args.head_dim + static_cast<int64_t>(group) * args.state;
  const int64_t c_offset = static_cast<int64_t>(args.groups) * args.state;
  float* state = piece.state + static_cast<int64_t>(head) * args.state * args.head_dim + p;
  for (int64_t row = piece.row; row < piece.row + piece.rows; ++row) {
    const T* xbc = static_cast<const T*>(args.xbc) + row * args.xbc_stride;
    const TokenStep step = StepOfToken(args, row, head);
    const float x = Widen(xbc[x_column]), u = x * step.delta;
    float y = x * args.d[head];
    for (int n = 0; n < args.state; ++n) {
      float& at = state[static_cast<int64_t>(n) * args.head_dim];
      const float s = fmaf(u, Widen(xbc[b_column + n]), at * step.decay);
      at = s;
      y = fmaf(s, Widen(xbc[b_column + c_offset + n]), y);
    }
    Narrow(static_cast<T*>(args.y)[row * args.y_stride + x_column], y);
  }
}

int64_t DivideUp(int64_t x, int64_t by) { return (x + by - 1) / by; }

template <class T>
cudaError_t ScanTokens(const ScanTokensArgs& args, const Pieces& pieces, cudaStream_t stream) {
  const auto count = static_cast<unsigned>(pieces.count);
  if (args.state > kMostState) {
    const auto parts = static_cast<unsigned>(DivideUp(args.head_dim, kLargeThreads));
    return Launch(LargeStateTokensKernel<T>, dim3(static_cast<unsigned>(args.heads) * parts, count),
                  kLargeThreads, 0, stream, args, pieces, parts);
  }
  bool whole = args.head_dim % 4 == 0;
  for (int i = 0; i < pieces.count; ++i) {
    whole = whole && reinterpret_cast<uintptr_t>(pieces.piece[i].state) % 16 == 0;
  }
  const auto parts = static_cast<unsigned>(DivideUp(args.head_dim, kCols));
  const dim3 grid(static_cast<unsigned>(args.heads) * parts, count);
  return whole ? Launch(ScanTokensKernel<T, true>, grid, kThreads, 0, stream, args, pieces, parts)
               : Launch(ScanTokensKernel<T, false>, grid, kThreads, 0, stream, args, pieces, parts);
}

}  // namespace

cudaError_t LaunchConvTokens(const ConvArgs& args, const Pieces& pieces, cudaStream_t stream) {
  int64_t longest = 1;
  for (int i = 0; i < pieces.count; ++i) {
    longest = pieces.piece[i].rows > longest ? pieces.piece[i].rows : longest;
  }
  const int64_t across = DivideUp(args.channels, kConvThreads);
  const dim3 grid(static_cast<unsigned>(across * DivideUp(longest, kConvRun)),
                  static_cast<unsigned>(pieces.count));
  const auto width = static_cast<unsigned>(across);
  return args.f32
             ? Launch(ConvTokensKernel<float>, grid, kConvThreads, 0, stream, args, pieces, width)
             : Launch(ConvTokensKernel<uint16_t>, grid, kConvThreads, 0, stream, args, pieces,
                      width);
}

cudaError_t LaunchScanTokens(const ScanTokensArgs& args, const Pieces& pieces,
                             cudaStream_t stream) {
  return args.f32 ? ScanTokens<float>(args, pieces, stream)
                  : ScanTokens<uint16_t>(args, pieces, stream);
}

}  // namespace nibble::gpu
