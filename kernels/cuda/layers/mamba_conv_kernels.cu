// The depthwise causal convolution with SiLU over whole sequences.
//
// A thread has kVec neighbouring channels and runs down a run of tokens with the last inputs in
// registers, so that each input is read from memory once (but for the few rows before a run, which
// the neighbouring run reads too). Rows are loaded in two groups, which alternate: while one is
// computed, the other is under way, and a group is loaded again as soon as it is computed. Groups
// in which no run and no document begins or ends take a path without tests. Limits: forward 4 bytes
// per element, backward 6, in BF16: 0.157 and 0.236 ms of a memory that copies 4.26 TB/s for 16,384
// tokens of 10,240 channels.
//
// The backward pass computes the gradient before SiLU once per element and spreads it over the
// input gradients of the last rows, which wait in registers. A thread block sums the gradients of
// the parameters over its runs and stores them; a second kernel adds those up in FP64, in a fixed
// order.
//
// The fast kernels are for width 4 and rows of whole vectors of BF16 or FP32; any other width up to
// 16, number of channels or alignment takes the same code with one channel per thread.
#include <type_traits>

#include "kernels/cuda/layers/mamba_conv.cuh"
#include "kernels/cuda/layers/mamba_conv_runs.cuh"
#include "kernels/cuda/layers/mamba_kernels.h"

namespace nibble::gpu {
namespace {

using namespace conv;

constexpr int kWarps = 8;

// How a kernel shares out the work. A thread has kVec channels of a run of kTokens tokens, in
// groups of kRows; kAcross of a block's warps are side by side, the others have the runs that
// follow; kBlocks thread blocks share a multiprocessor.
template <int tokens, int vec, int rows, int across, int blocks>
struct Tiling {
  static constexpr int kTokens = tokens, kVec = vec, kRows = rows, kAcross = across;
  static constexpr int kBlocks = blocks;
  static constexpr int kCols = 32 * kVec * kAcross;  // of a thread block
  static constexpr int kRuns = kWarps / kAcross;     // of a thread block
  // Documents are looked up for 32 rows at a time: whole pairs of groups.
  static_assert(kWarps % kAcross == 0 && 32 % (2 * kRows) == 0);
};

using ForwardTile = Tiling<64, 8, 4, 8, 2>;  // of BF16
using ForwardTileF32 = Tiling<64, 4, 4, 8, 2>;
using ForwardGeneral = Tiling<64, 1, 4, 1, 2>;
using BackwardTile = Tiling<64, 4, 4, 2, 2>;
using BackwardGeneral = Tiling<64, 1, 2, 2, 2>;

// Blocks of rows whose sums a thread block of the backward pass adds up.
static_assert(BackwardTile::kTokens == BackwardGeneral::kTokens);
static_assert(BackwardTile::kRuns == BackwardGeneral::kRuns);

// Where a warp's channels begin and which run it has.
template <class Tile>
__device__ __forceinline__ int64_t FirstChannel(unsigned across) {
  const int beside = static_cast<int>(threadIdx.x / 32) % Tile::kAcross;
  return int64_t{blockIdx.x % across} * Tile::kCols + beside * (32 * Tile::kVec);
}
// Where a thread's channels begin: lanes beyond the last channel do the same work, and store the
// same values, as the last lane that has channels.
template <class Tile>
__device__ __forceinline__ int64_t ChannelOf(const ConvArgs& args, int64_t first_channel) {
  const int64_t channel = first_channel + threadIdx.x % 32 * Tile::kVec;
  return channel < args.channels ? channel : args.channels - Tile::kVec;
}
template <class Tile>
__device__ __forceinline__ int64_t RunIndex(unsigned across) {
  return int64_t{blockIdx.x / across} * Tile::kRuns + threadIdx.x / 32 / Tile::kAcross;
}

// `across`: the number of thread blocks beside each other.
template <class T, int kTaps, class Tile>
__global__ __launch_bounds__(32 * kWarps, Tile::kBlocks) void ForwardKernel(
    const __grid_constant__ ConvArgs args, unsigned across) {
  constexpr int kVec = Tile::kVec, kRows = Tile::kRows;
  const int64_t first_channel = FirstChannel<Tile>(across);
  const Run run = RunAt<Tile::kTokens>(args, RunIndex<Tile>(across));
  if (run.count <= 0 || first_channel >= args.channels) return;
  const int64_t channel = ChannelOf<Tile>(args, first_channel);
  const int skip = kVec > 1 ? 0 : kTaps - args.width;
  const T* in = static_cast<const T*>(args.in) + channel;
  T* out = static_cast<T*>(args.out) + channel + run.row * args.out_stride;
  const Filter<kVec, kTaps> filter(args, channel, skip);
  float past[kTaps][kVec];
  LoadPast<T>(args, run, in, past);
  in += run.row * args.in_stride;
  Raw<T, kVec> even[kRows], odd[kRows];
  const auto load = [&](Raw<T, kVec>(&group)[kRows], int first) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i < run.count) group[i] = LoadRaw<T, kVec>(in);
      in += args.in_stride;
    }
  };
  // Rows `first` …; bit i of `begins`: row i of them begins a document.
  const auto convolve = [&](const Raw<T, kVec>(&group)[kRows], int first, uint32_t begins) {
    const auto rows = [&](auto is_plain) {
      constexpr bool kPlain = decltype(is_plain)::value;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (!kPlain && (begins >> i & 1) != 0) Forget(past);
        Advance(past, group[i]);
        float y[kVec];
#pragma unroll
        for (int v = 0; v < kVec; ++v) y[v] = Silu(Convolve(filter, past, v, skip));
        if (kPlain || first + i < run.count) StoreRounded(out, y);
        out += args.out_stride;
        Shift(past);
      }
    };
    if (first + kRows <= run.count && begins == 0) {
      rows(std::true_type());
    } else if (first < run.count) {
      rows(std::false_type());
    }
  };
  constexpr uint32_t kGroup = (uint32_t{1} << kRows) - 1;
  load(even, 0);
  load(odd, kRows);
  uint32_t begins = 0;
  for (int first = 0; first < run.count; first += 2 * kRows) {
    if (first % 32 == 0) begins = NearBegins(args, run, first, run.count, 1);
    convolve(even, first, begins & kGroup);
    load(even, first + 2 * kRows);
    convolve(odd, first + kRows, begins >> kRows & kGroup);
    load(odd, first + 3 * kRows);
    begins >>= kRows;
    begins >>= kRows;  // kRows may be 16
  }
}

template <class T, int kTaps, class Tile>
__global__ __launch_bounds__(32 * kWarps, Tile::kBlocks) void BackwardKernel(
    const __grid_constant__ ConvArgs args, unsigned across) {
  constexpr int kVec = Tile::kVec, kRows = Tile::kRows, kCols = Tile::kCols;
  __shared__ float shared[Tile::kRuns][kTaps + 1][kCols];
  const int64_t first_channel = FirstChannel<Tile>(across);
  const Run run = RunAt<Tile::kTokens>(args, RunIndex<Tile>(across));
  const int skip = kVec > 1 ? 0 : kTaps - args.width;
  float sums[kTaps + 1][kVec] = {};
  if (run.count > 0 && first_channel < args.channels) {
    const int64_t channel = ChannelOf<Tile>(args, first_channel);
    const T* in = static_cast<const T*>(args.in) + channel;
    const T* dout = static_cast<const T*>(args.dout) + channel + run.row * args.dout_stride;
    T* din = static_cast<T*>(args.out) + channel + run.row * args.out_stride;
    // Rows after the run whose gradients reach into it, and how many rows there are to read.
    const int64_t rest = args.length - run.begin - run.count;
    const int count = run.count + static_cast<int>(rest < args.width - 1 ? rest : args.width - 1);
    const Filter<kVec, kTaps> filter(args, channel, skip);
    float past[kTaps][kVec];
    LoadPast<T>(args, run, in, past);
    in += run.row * args.in_stride;
    // Input gradients of the last kTaps − 1 rows and of this one, so far.
    float pending[kTaps][kVec] = {};
    struct Group {
      Raw<T, kVec> in[kRows], dout[kRows];
    } even, odd;
    const auto load = [&](Group& group, int first) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (first + i < count) {
          group.in[i] = LoadRaw<T, kVec>(in);
          group.dout[i] = LoadRaw<T, kVec>(dout);
        }
        in += args.in_stride;
        dout += args.dout_stride;
      }
    };
    // Rows `first` …; near: whether one of them has fewer than kTaps − 1 rows of its document
    // before it.
    const auto spread = [&](const Group& group, int first, bool near) {
      const auto rows = [&](auto is_plain) {
        constexpr bool kPlain = decltype(is_plain)::value;
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          const int t = first + i;
          if (kPlain || t < count) {
            // How many rows before this one are of its document, up to kTaps − 1.
            int reach = kTaps - 1;
            if (!kPlain) {
              const int64_t before = run.begin + t - DocumentOf(args, run.row + t);
              if (before < reach) reach = static_cast<int>(before);
              if (reach == 0) Forget(past);
            }
            Advance(past, group.in[i]);
            float g[kVec];
#pragma unroll
            for (int v = 0; v < kVec; ++v) {
              g[v] = group.dout[i][v] * SiluSlope(Convolve(filter, past, v, skip));
            }
#pragma unroll
            for (int w = 0; w < kTaps; ++w) {
              if (w < skip || (!kPlain && kTaps - 1 - w > reach)) continue;
#pragma unroll
              for (int v = 0; v < kVec; ++v) {
                pending[w][v] = fmaf(filter.tap[w][v], g[v], pending[w][v]);
                if (kPlain || t < run.count) sums[w][v] = fmaf(g[v], past[w][v], sums[w][v]);
              }
            }
            if (kPlain || t < run.count) {
#pragma unroll
              for (int v = 0; v < kVec; ++v) sums[kTaps][v] += g[v];
            }
          }
          if (kPlain || (t >= kTaps - 1 && t < run.count + kTaps - 1)) {
            StoreRounded(din, pending[0]);
          }
          if (kPlain || t >= kTaps - 1) din += args.out_stride;
          Shift(past);
          Shift(pending);
#pragma unroll
          for (int v = 0; v < kVec; ++v) pending[kTaps - 1][v] = 0;
        }
      };
      if (first >= kTaps - 1 && first + kRows <= run.count && !near) {
        rows(std::true_type());
      } else if (first < run.count + kTaps - 1) {
        rows(std::false_type());
      }
    };
    constexpr uint32_t kGroup = (uint32_t{1} << kRows) - 1;
    load(even, 0);
    load(odd, kRows);
    uint32_t near = 0;
    for (int first = 0; first < run.count + kTaps - 1; first += 2 * kRows) {
      if (first % 32 == 0) near = NearBegins(args, run, first, count, kTaps - 1);
      spread(even, first, (near & kGroup) != 0);
      load(even, first + 2 * kRows);
      spread(odd, first + kRows, (near >> kRows & kGroup) != 0);
      load(odd, first + 3 * kRows);
      near >>= kRows;
      near >>= kRows;  // kRows may be 16
    }
  }
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int first = warp % Tile::kAcross * (32 * kVec) + static_cast<int>(threadIdx.x % 32) * kVec;
#pragma unroll
  for (int w = 0; w <= kTaps; ++w) {
#pragma unroll
    for (int v = 0; v < kVec; ++v) shared[warp / Tile::kAcross][w][first + v] = sums[w][v];
  }
  __syncthreads();
  const int64_t row_block = blockIdx.x / across;
  const int64_t block_channel = int64_t{blockIdx.x % across} * kCols;
  for (int at = static_cast<int>(threadIdx.x); at < (kTaps + 1) * kCols; at += 32 * kWarps) {
    const int w = at / kCols, c = at % kCols;
    if (w < skip || block_channel + c >= args.channels) continue;
    float sum = 0;
    for (int other = 0; other < Tile::kRuns; ++other) sum += shared[other][w][c];
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
  constexpr int kLoads = 4;  // at once
  for (int64_t first = warp; first < row_blocks && channel < args.channels;
       first += kLoads * kWarps) {
    float x[kLoads];
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int64_t at = (first + i * kWarps) * (args.width + 1) + w;
      x[i] = first + i * kWarps < row_blocks ? args.partial[at * args.channels + channel] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) sum += x[i];
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

template <class T, int kTaps, class Tile>
cudaError_t Forward(const ConvArgs& args, cudaStream_t stream) {
  const int64_t runs = args.sequences * DivideUp(args.length, Tile::kTokens);
  const int64_t across = DivideUp(args.channels, Tile::kCols);
  return Launch(ForwardKernel<T, kTaps, Tile>,
                dim3(static_cast<unsigned>(across * DivideUp(runs, Tile::kRuns))), 32 * kWarps, 0,
                stream, args, static_cast<unsigned>(across));
}
template <class T, int kTaps, class Tile>
cudaError_t Backward(const ConvArgs& args, cudaStream_t stream) {
  const int64_t across = DivideUp(args.channels, Tile::kCols);
  const int64_t row_blocks = ConvRowBlocks(args.sequences, args.length);
  const cudaError_t error =
      Launch(BackwardKernel<T, kTaps, Tile>, dim3(static_cast<unsigned>(across * row_blocks)),
             32 * kWarps, 0, stream, args, static_cast<unsigned>(across));
  if (error != cudaSuccess) return error;
  return Launch(SumKernel,
                dim3(static_cast<unsigned>(DivideUp(args.channels, 32)),
                     static_cast<unsigned>(args.width + 1)),
                32 * kWarps, 0, stream, args, row_blocks);
}

// Whether the fast kernels take a request of elements of `bytes`, in vectors of `vec`.
bool IsFast(const ConvArgs& args, bool backward, int vec) {
  const int bytes = args.f32 ? 4 : 2;
  return args.width == 4 && args.channels % vec == 0 && Fits(args.in, args.in_stride, vec, bytes) &&
         Fits(args.out, args.out_stride, vec, bytes) && Fits(args.weight, 4, 4, 4) &&
         (!backward || Fits(args.dout, args.dout_stride, vec, bytes));
}

}  // namespace

int64_t ConvRowBlocks(int64_t sequences, int64_t length) {
  return DivideUp(sequences * DivideUp(length, BackwardTile::kTokens), BackwardTile::kRuns);
}

cudaError_t LaunchConvForward(const ConvArgs& args, cudaStream_t stream) {
  if (args.f32) {
    return IsFast(args, false, ForwardTileF32::kVec)
               ? Forward<float, 4, ForwardTileF32>(args, stream)
               : Forward<float, kMostTaps, ForwardGeneral>(args, stream);
  }
  return IsFast(args, false, ForwardTile::kVec)
             ? Forward<uint16_t, 4, ForwardTile>(args, stream)
             : Forward<uint16_t, kMostTaps, ForwardGeneral>(args, stream);
}

cudaError_t LaunchConvBackward(const ConvArgs& args, cudaStream_t stream) {
  const bool fast = IsFast(args, true, BackwardTile::kVec);
  if (args.f32) {
    return fast ? Backward<float, 4, BackwardTile>(args, stream)
                : Backward<float, kMostTaps, BackwardGeneral>(args, stream);
  }
  return fast ? Backward<uint16_t, 4, BackwardTile>(args, stream)
              : Backward<uint16_t, kMostTaps, BackwardGeneral>(args, stream);
}

}  // namespace nibble::gpu
