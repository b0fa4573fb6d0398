// The depthwise causal convolution with SiLU over whole sequences.
//
// A thread has kVec neighbouring channels and runs down kRun tokens with the last inputs in
// registers, so that each input is read from memory once (but for the few rows before a run, which
// the neighbouring run has just read). Eight rows are loaded together, four
// of each matrix in the backward pass. Limits: forward 4
// bytes per element, backward 6, in BF16: 0.157 and 0.236 ms of a memory that copies 4.26 TB/s for
// 16,384 tokens of 10,240 channels.
//
// The backward pass computes the gradient before SiLU once per element and spreads it over the
// input gradients of the last rows, which wait in registers. A thread block sums the gradients of
// the parameters over kWarps runs and stores them; a second kernel adds those up in FP64, in a
// fixed order.
//
// The fast kernels are for width 4 and rows of 16-byte pieces (8-byte ones in the backward pass);
// any other width up to 16, number of channels or alignment takes the same code with one channel
// per thread.
#include "kernels/cuda/layers/mamba_conv.cuh"
#include "kernels/cuda/layers/mamba_kernels.h"

namespace nibble::gpu {
namespace {

using namespace conv;

constexpr int kWarps = 8;
constexpr int kForwardRun = 32;
constexpr int kBackwardRun = 64;
constexpr int kBackwardAhead = 4;  // two matrices, so that they fit into the registers

// The part of a run that is inside its sequence.
struct Run {
  int64_t row;  // of token `begin`
  int64_t begin, end;
};
template <int kRun>
__device__ __forceinline__ Run RunAt(const ConvArgs& args, int64_t index) {
  const int64_t per_sequence = (args.length + kRun - 1) / kRun;
  const int64_t sequence = index / per_sequence;
  const int64_t begin = (index - sequence * per_sequence) * kRun;
  const int64_t end = begin + kRun < args.length ? begin + kRun : args.length;
  return {sequence * args.length + begin, begin, sequence < args.sequences ? end : begin};
}
__device__ __forceinline__ int64_t DocumentOf(const ConvArgs& args, int64_t row) {
  return args.doc_begin == nullptr ? 0 : __ldg(args.doc_begin + row);
}

// The inputs of the kTaps − 1 rows before a run, zero where the run's first token does not depend
// on them.
template <class T, int kVec, int kTaps>
__device__ __forceinline__ void LoadPast(const ConvArgs& args, const Run& run, const T* in,
                                         float (&past)[kTaps][kVec]) {
  const int64_t document = DocumentOf(args, run.row);
#pragma unroll
  for (int i = 0; i < kTaps - 1; ++i) {
    const int back = kTaps - 1 - i;
    const bool seen = back < args.width && run.begin - back >= document;
    Raw<T, kVec> raw = {};
    if (seen) raw = LoadRaw<T, kVec>(in + (run.row - back) * args.in_stride);
#pragma unroll
    for (int v = 0; v < kVec; ++v) past[i][v] = Widen(raw.x[v]);
  }
}

template <class T, int kVec, int kTaps>
__global__ __launch_bounds__(32 * kWarps,
                             2) void ForwardKernel(const __grid_constant__ ConvArgs args,
                                                   unsigned across) {
  const int64_t channel = (int64_t{blockIdx.x % across} * 32 + threadIdx.x % 32) * kVec;
  const Run run =
      RunAt<kForwardRun>(args, int64_t{blockIdx.x / across} * kWarps + threadIdx.x / 32);
  if (run.begin >= run.end || channel >= args.channels) return;
  const int skip = kVec > 1 ? 0 : kTaps - args.width;
  const T* in = static_cast<const T*>(args.in) + channel;
  T* out = static_cast<T*>(args.out) + channel;
  const Filter<kVec, kTaps> filter(args, channel, skip);
  float past[kTaps][kVec];
  LoadPast<T>(args, run, in, past);
  const int count = static_cast<int>(run.end - run.begin);
  for (int first = 0; first < count; first += kAhead) {
    Raw<T, kVec> raw[kAhead];
    int64_t document[kAhead] = {};
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= count) continue;
      raw[i] = LoadRaw<T, kVec>(in + (run.row + first + i) * args.in_stride);
      document[i] = DocumentOf(args, run.row + first + i);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= count) continue;
      if (document[i] == run.begin + first + i) Forget(past);
      Advance(past, raw[i]);
      float y[kVec];
#pragma unroll
      for (int v = 0; v < kVec; ++v) y[v] = Silu(Convolve(filter, past, v, skip));
      StoreRounded(out + (run.row + first + i) * args.out_stride, y);
      Shift(past);
    }
  }
}

template <class T, int kVec, int kTaps>
__global__ __launch_bounds__(32 * kWarps,
                             2) void BackwardKernel(const __grid_constant__ ConvArgs args,
                                                    unsigned across) {
  __shared__ float shared[kWarps][kTaps + 1][32 * kVec];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t block_channel = int64_t{blockIdx.x % across} * (32 * kVec);
  const int64_t row_block = blockIdx.x / across;
  const int64_t channel = block_channel + lane * kVec;
  const Run run = RunAt<kBackwardRun>(args, row_block * kWarps + warp);
  const int skip = kVec > 1 ? 0 : kTaps - args.width;
  float sums[kTaps + 1][kVec] = {};
  if (run.begin < run.end && channel < args.channels) {
    const T* in = static_cast<const T*>(args.in) + channel;
    const T* dout = static_cast<const T*>(args.dout) + channel;
    T* din = static_cast<T*>(args.out) + channel;
    const Filter<kVec, kTaps> filter(args, channel, skip);
    float past[kTaps][kVec];
    LoadPast<T>(args, run, in, past);
    // Input gradients of the last kTaps − 1 rows and of this one, so far.
    float pending[kTaps][kVec] = {};
    const int own = static_cast<int>(run.end - run.begin);
    const int64_t rest = args.length - run.end;
    const int after = static_cast<int>(rest < args.width - 1 ? rest : args.width - 1);
    for (int first = 0; first < own + kTaps - 1; first += kBackwardAhead) {
      Raw<T, kVec> raw[kBackwardAhead], gradient[kBackwardAhead];
      int64_t document[kBackwardAhead] = {};
#pragma unroll
      for (int i = 0; i < kBackwardAhead; ++i) {
        if (first + i >= own + after) continue;
        const int64_t row = run.row + first + i;
        raw[i] = LoadRaw<T, kVec>(in + row * args.in_stride);
        gradient[i] = LoadRaw<T, kVec>(dout + row * args.dout_stride);
        document[i] = DocumentOf(args, row);
      }
#pragma unroll
      for (int i = 0; i < kBackwardAhead; ++i) {
        const int t = first + i;
        if (t >= own + kTaps - 1) continue;
        if (t < own + after) {
          // The number of rows before this one that are of its document.
          const int64_t reach = run.begin + t - document[i];
          if (reach == 0) Forget(past);
          Advance(past, raw[i]);
          float g[kVec];
#pragma unroll
          for (int v = 0; v < kVec; ++v) {
            g[v] = Widen(gradient[i].x[v]) * SiluSlope(Convolve(filter, past, v, skip));
          }
#pragma unroll
          for (int w = 0; w < kTaps; ++w) {
            if (w < skip || kTaps - 1 - w > reach) continue;
#pragma unroll
            for (int v = 0; v < kVec; ++v) {
              pending[w][v] = fmaf(filter.tap[w][v], g[v], pending[w][v]);
              if (t < own) sums[w][v] = fmaf(g[v], past[w][v], sums[w][v]);
            }
          }
          if (t < own) {
#pragma unroll
            for (int v = 0; v < kVec; ++v) sums[kTaps][v] += g[v];
          }
          Shift(past);
        }
        const int done = t - (kTaps - 1);
        if (done >= 0) StoreRounded(din + (run.row + done) * args.out_stride, pending[0]);
        Shift(pending);
#pragma unroll
        for (int v = 0; v < kVec; ++v) pending[kTaps - 1][v] = 0;
      }
    }
  }
#pragma unroll
  for (int w = 0; w <= kTaps; ++w) {
#pragma unroll
    for (int v = 0; v < kVec; ++v) shared[warp][w][lane * kVec + v] = sums[w][v];
  }
  __syncthreads();
  for (int at = static_cast<int>(threadIdx.x); at < (kTaps + 1) * 32 * kVec; at += 32 * kWarps) {
    const int w = at / (32 * kVec), c = at % (32 * kVec);
    if (w < skip || block_channel + c >= args.channels) continue;
    float sum = 0;
    for (int other = 0; other < kWarps; ++other) sum += shared[other][w][c];
    args.partial[(row_block * (args.width + 1) + w - skip) * args.channels + block_channel + c] =
        sum;
  }
}

// Thread blocks have 32 channels and one of the width + 1 sums; warps share the blocks of rows.
__global__ __launch_bounds__(32 * kWarps) void SumKernel(const __grid_constant__ ConvArgs args,
                                                         int64_t row_blocks) {
  __shared__ double shared[kWarps][32];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int64_t channel = int64_t{blockIdx.x} * 32 + lane;
  const int w = static_cast<int>(blockIdx.y);
  double sum = 0;
  if (channel < args.channels) {
    for (int64_t block = warp; block < row_blocks; block += kWarps) {
      sum += args.partial[(block * (args.width + 1) + w) * args.channels + channel];
    }
  }
  shared[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || channel >= args.channels) return;
  for (int other = 1; other < kWarps; ++other) sum += shared[other][lane];
  float* to = w < args.width ? args.dweight + channel * args.width + w : args.dbias + channel;
  *to = static_cast<float>(*to + sum);
}

bool Fits(const void* data, int64_t stride, int64_t elements, int bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(elements * bytes) == 0 &&
         stride % elements == 0;
}
int64_t DivideUp(int64_t x, int64_t by) { return (x + by - 1) / by; }

template <class T, int kVec, int kTaps>
cudaError_t Forward(const ConvArgs& args, cudaStream_t stream) {
  const int64_t runs = args.sequences * DivideUp(args.length, kForwardRun);
  const int64_t across = DivideUp(args.channels, 32 * kVec);
  return Launch(ForwardKernel<T, kVec, kTaps>,
                dim3(static_cast<unsigned>(across * DivideUp(runs, kWarps))), 32 * kWarps, 0,
                stream, args, static_cast<unsigned>(across));
}
template <class T, int kVec, int kTaps>
cudaError_t Backward(const ConvArgs& args, cudaStream_t stream) {
  const int64_t across = DivideUp(args.channels, 32 * kVec);
  const int64_t row_blocks = ConvRowBlocks(args.sequences, args.length);
  const cudaError_t error =
      Launch(BackwardKernel<T, kVec, kTaps>, dim3(static_cast<unsigned>(across * row_blocks)),
             32 * kWarps, 0, stream, args, static_cast<unsigned>(across));
  if (error != cudaSuccess) return error;
  return Launch(SumKernel,
                dim3(static_cast<unsigned>(DivideUp(args.channels, 32)),
                     static_cast<unsigned>(args.width + 1)),
                32 * kWarps, 0, stream, args, row_blocks);
}

}  // namespace

int64_t ConvRowBlocks(int64_t sequences, int64_t length) {
  return DivideUp(sequences * DivideUp(length, kBackwardRun), kWarps);
}

cudaError_t LaunchConvForward(const ConvArgs& args, cudaStream_t stream) {
  const int bytes = args.f32 ? 4 : 2, vec = 16 / bytes;
  const bool fast = args.width == 4 && args.channels % vec == 0 &&
                    Fits(args.in, args.in_stride, vec, bytes) &&
                    Fits(args.out, args.out_stride, vec, bytes) && Fits(args.weight, 4, 4, 4);
  if (args.f32) {
    return fast ? Forward<float, 4, 4>(args, stream) : Forward<float, 1, kMostTaps>(args, stream);
  }
  return fast ? Forward<uint16_t, 8, 4>(args, stream)
              : Forward<uint16_t, 1, kMostTaps>(args, stream);
}

cudaError_t LaunchConvBackward(const ConvArgs& args, cudaStream_t stream) {
  const int bytes = args.f32 ? 4 : 2, vec = 4;
  const bool fast = args.width == 4 && args.channels % vec == 0 &&
                    Fits(args.in, args.in_stride, vec, bytes) &&
                    Fits(args.dout, args.dout_stride, vec, bytes) &&
                    Fits(args.out, args.out_stride, vec, bytes) && Fits(args.weight, 4, 4, 4);
  if (args.f32) {
    return fast ? Backward<float, 4, 4>(args, stream) : Backward<float, 1, kMostTaps>(args, stream);
  }
  return fast ? Backward<uint16_t, 4, 4>(args, stream)
              : Backward<uint16_t, 1, kMostTaps>(args, stream);
}

}  // namespace nibble::gpu
