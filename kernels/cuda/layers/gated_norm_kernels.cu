// Limits: one read and one write of each tensor; the backward pass adds FP32 partial sums of the
// weights' gradient, some megabytes of them.
//
// A team of threads takes one group of columns, a row at a time in registers, eights of columns of
// a thread side by side; the next row is loaded while this one is computed. The teams of a group
// take turns at its rows, so that all of them together move through the matrices in order. Where a
// group is narrow, a team is a warp, which waits for no other; otherwise it is a thread block. All
// teams run at once. Backward, a team sums the gradients of the weights over its rows in registers.
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/layers/block_sum.cuh"
#include "kernels/cuda/layers/eight.cuh"
#include "kernels/cuda/layers/norm_kernels.h"
#include "kernels/cuda/layers/norm_row.cuh"
#include "kernels/cuda/layers/silu.cuh"

namespace nibble::gpu {
namespace {

constexpr int kTeamsOfBlock = 8;  // where teams are warps
constexpr int kMultiprocessors = 132;
constexpr int kForwardWarps = 24;  // of a multiprocessor: as their registers allow
constexpr int kBackwardWarps = 16;

// Eights of a row per thread, and threads, of a group's team.
int ChunksOf(int64_t width) { return width <= 2 * kEight * 512 ? 2 : 4; }
int64_t TeamThreads(int64_t width) {
  const int64_t each = kEight * ChunksOf(width);
  const int64_t threads = (width + each - 1) / each;
  return (threads + kWarp - 1) / kWarp * kWarp;
}
// Teams that share a group's rows: as many as run at once with so many warps per multiprocessor.
int64_t TeamsOfGroup(int64_t rows, int64_t width, int groups, int warps) {
  const int64_t of_multiprocessor = warps * kWarp / TeamThreads(width);
  const int64_t teams =
      kMultiprocessors * (of_multiprocessor == 0 ? 1 : of_multiprocessor) / groups;
  return teams < 1 ? 1 : teams < rows ? teams : rows;
}

template <bool kWarps>
struct Team {
  int64_t number;  // in the grid
  int thread, threads;

  __device__ __forceinline__ Team() {
    if constexpr (kWarps) {
      number = int64_t{blockIdx.x} * kTeamsOfBlock + threadIdx.x / kWarp;
      thread = static_cast<int>(threadIdx.x) % kWarp;
      threads = kWarp;
    } else {
      number = blockIdx.x;
      thread = static_cast<int>(threadIdx.x);
      threads = static_cast<int>(blockDim.x);
    }
  }
  // Where a thread's eight number `chunk` begins in a group.
  __device__ __forceinline__ int Column(int chunk) const {
    return kEight * (chunk * threads + thread);
  }
  // Consecutive calls alternate between two spaces.
  __device__ __forceinline__ float Sum(float x, SumSpace& space) const {
    return kWarps ? WarpSum(x) : BlockSum(x, space);
  }
};
template <int kChunks, bool kWarps>
inline constexpr int kThreads = kWarps         ? kTeamsOfBlock* kWarp
                                : kChunks <= 2 ? 512
                                               : 1024;
template <bool kWarps>
inline constexpr int kForwardBlocks = kWarps ? kForwardWarps / kTeamsOfBlock : 1;
template <bool kWarps>
inline constexpr int kBackwardBlocks = kWarps ? kBackwardWarps / kTeamsOfBlock : 1;

// FP32 has all digits of the functions.
template <class T>
__device__ __forceinline__ float Sigmoid(float x) {
  if constexpr (sizeof(T) == 4) {
    return 1.0f / (1.0f + expf(-x));
  } else {
    return silu::Sigmoid(x);
  }
}

// Eights of one row's group, as a thread has them.
template <class T, bool kWide, int kChunks>
struct Part {
  RawEight<T, kWide> eight[kChunks];
  template <bool kWarps>
  __device__ __forceinline__ void Load(const ConstMatrix& matrix, int64_t row, int64_t first,
                                       int width, const Team<kWarps>& team) {
    const T* from = RowOf<T>(matrix, row) + first;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int c = team.Column(k);
      if (c < width) eight[k].Load(from + c, width - c);
    }
  }
};
// The weights of a thread's columns, zero beyond the group.
template <bool kWide, int kChunks, bool kWarps>
__device__ __forceinline__ void LoadWeights(const float* weight, int width,
                                            const Team<kWarps>& team, float (&w)[kChunks][kEight]) {
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = team.Column(k);
#pragma unroll
    for (int i = 0; i < kEight; ++i) w[k][i] = 0;
    if (c < width) LoadEight<kWide>(weight + c, width - c, w[k]);
  }
}

template <class T, bool kWide, int kChunks, bool kWarps>
__global__ __launch_bounds__(
    kThreads<kChunks, kWarps>,
    kForwardBlocks<kWarps>) void GatedNormKernel(const __grid_constant__ GatedNormForward request,
                                                 int64_t teams) {
  __shared__ SumSpace spaces[2];
  const Team<kWarps> team;
  const int64_t rows = request.y.rows;
  const int groups = request.groups, width = static_cast<int>(request.y.cols) / groups;
  const int64_t group = team.number % groups, first = group * width;
  int64_t row = team.number / groups;
  if (row >= teams) return;
  float w[kChunks][kEight];
  LoadWeights<kWide>(request.weight + first, width, team, w);
  Part<T, kWide, kChunks> y, z;
  y.Load(request.y, row, first, width, team);
  z.Load(request.z, row, first, width, team);
  float amax = 0;
  for (int turn = 0; row < rows; row += teams, turn ^= 1) {
    float v[kChunks][kEight];
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      float gate[kEight];
      y.eight[k].Get(v[k]);
      z.eight[k].Get(gate);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        v[k][i] *= gate[i] * Sigmoid<T>(gate[i]);
        squares += v[k][i] * v[k][i];
      }
    }
    if (row + teams < rows) {
      y.Load(request.y, row + teams, first, width, team);
      z.Load(request.z, row + teams, first, width, team);
    }
    const float rstd = ReciprocalDeviation(team.Sum(squares, spaces[turn]), width, request.eps);
    if (team.thread == 0) request.rstd[row * groups + group] = rstd;
    T* const to = RowOf<T>(request.out, row) + first;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int c = team.Column(k);
      if (c >= width) continue;
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        v[k][i] = v[k][i] * rstd * w[k][i];
        amax = fmaxf(amax, fabsf(v[k][i]));
      }
      StoreEight<kWide>(to + c, width - c, v[k]);
    }
  }
  if (request.amax != nullptr) RaiseAmax(request.amax, Rounded<T>(amax));
}

// With h = y SiLU(z) and ĥ = h rstd: dh = rstd (g − ĥ mean(g ĥ)) with g = dout ⊙ weight,
// dy = dh SiLU(z), dz = dh y SiLU'(z). Between the two passes over a row its elements are kept as
// they are in memory, and the sigmoids. The weights come from the first-level cache twice, which
// leaves their registers to the rows.
template <class T, bool kWide, int kChunks, bool kWarps>
__global__
__launch_bounds__(kThreads<kChunks, kWarps>, kBackwardBlocks<kWarps>) void GatedNormBackwardKernel(
    const __grid_constant__ GatedNormBackward request, int64_t teams,
    float* __restrict__ dweights) {
  __shared__ SumSpace spaces[2];
  const Team<kWarps> team;
  const int64_t rows = request.y.rows, d = request.y.cols;
  const int groups = request.groups, width = static_cast<int>(d) / groups;
  const int64_t group = team.number % groups, first = group * width;
  const int64_t begin = team.number / groups;
  if (begin >= teams) return;
  float dweight[kChunks][kEight] = {};
  struct Row {
    Part<T, kWide, kChunks> y, z, dout;
    float rstd = 0;
  } next;
  const auto load = [&](int64_t row) {
    next.rstd = request.rstd[row * groups + group];
    next.y.Load(request.y, row, first, width, team);
    next.z.Load(request.z, row, first, width, team);
    next.dout.Load(request.dout, row, first, width, team);
  };
  const float per_column = 1.0f / static_cast<float>(width);
  load(begin);
  int turn = 0;
  for (int64_t row = begin; row < rows; row += teams, turn ^= 1) {
    const Row now = next;
    if (row + teams < rows) load(row + teams);
    float sigmoid[kChunks][kEight];
    float sum = 0;
    const float* weight = request.weight + Kept(first);
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int c = team.Column(k);
      if (c >= width) continue;
      float w[kEight], y[kEight], z[kEight], dout[kEight];
      LoadEight<kWide>(weight + c, width - c, w);
      now.y.eight[k].Get(y);
      now.z.eight[k].Get(z);
      now.dout.eight[k].Get(dout);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        sigmoid[k][i] = Sigmoid<T>(z[i]);
        const float normed = y[i] * (z[i] * sigmoid[k][i]) * now.rstd;
        const float product = dout[i] * normed;
        dweight[k][i] += product;
        sum += product * w[i];
      }
    }
    const float mean = team.Sum(sum, spaces[turn]) * per_column;
    weight = request.weight + Kept(first);
    T* const to_dy = RowOf<T>(request.dy, row) + first;
    T* const to_dz = RowOf<T>(request.dz, row) + first;
#pragma unroll
    for (int k = 0; k < kChunks; ++k) {
      const int c = team.Column(k);
      if (c >= width) continue;
      float w[kEight], y[kEight], z[kEight], dout[kEight], dy[kEight], dz[kEight];
      LoadEight<kWide>(weight + c, width - c, w);
      now.y.eight[k].Get(y);
      now.z.eight[k].Get(z);
      now.dout.eight[k].Get(dout);
#pragma unroll
      for (int i = 0; i < kEight; ++i) {
        const float s = sigmoid[k][i], gate = z[i] * s;
        const float dh = now.rstd * (dout[i] * w[i] - y[i] * gate * (now.rstd * mean));
        dy[i] = dh * gate;
        dz[i] = dh * y[i] * (s + gate * (1.0f - s));
      }
      StoreEight<kWide>(to_dy + c, width - c, dy);
      StoreEight<kWide>(to_dz + c, width - c, dz);
    }
  }
  float* const to = dweights + begin * d + first;
#pragma unroll
  for (int k = 0; k < kChunks; ++k) {
    const int c = team.Column(k);
    if (c < width) StoreEight<kWide>(to + c, width - c, dweight[k]);
  }
}

// Calls use(std::integral_constant<int, chunks>, std::bool_constant<warps>) for groups of `width`.
template <class Wide, class Use>
cudaError_t WithTeams(int64_t width, Wide, Use use) {
  if (ChunksOf(width) == 4) return use(std::integral_constant<int, 4>(), std::false_type());
  if constexpr (Wide::value) {
    if (TeamThreads(width) == kWarp) {
      return use(std::integral_constant<int, 2>(), std::true_type());
    }
  }
  return use(std::integral_constant<int, 2>(), std::false_type());
}
// The grid and the block's threads of so many teams.
struct Blocks {
  dim3 grid;
  unsigned threads;
};
Blocks BlocksOf(int64_t teams, int64_t width, bool warps) {
  const int64_t blocks = warps ? (teams + kTeamsOfBlock - 1) / kTeamsOfBlock : teams;
  return {dim3(static_cast<unsigned>(blocks)),
          static_cast<unsigned>(TeamThreads(width) * (warps ? kTeamsOfBlock : 1))};
}

}  // namespace

int64_t GatedRowBlocksOf(int64_t rows, int64_t cols, int groups) {
  return TeamsOfGroup(rows, cols / groups, groups, kBackwardWarps);
}

cudaError_t LaunchGatedNorm(const GatedNormForward& r, cudaStream_t stream) {
  if (r.y.rows == 0 || r.y.cols == 0) return cudaSuccess;
  const int64_t width = r.y.cols / r.groups;
  const bool wide =
      InEights(r.y) && InEights(r.z) && InEights(r.out) && Aligned(r.weight) && width % kEight == 0;
  const int64_t teams = TeamsOfGroup(r.y.rows, width, r.groups, kForwardWarps);
  return WithElements(r.y.dtype, wide, [&](auto element, auto is_wide) {
    return WithTeams(width, is_wide, [&](auto chunks, auto warps) {
      const Blocks blocks = BlocksOf(teams * r.groups, width, warps);
      return Launch(GatedNormKernel<decltype(element), decltype(is_wide)::value,
                                    decltype(chunks)::value, decltype(warps)::value>,
                    blocks.grid, blocks.threads, 0, stream, r, teams);
    });
  });
}

cudaError_t LaunchGatedNormBackward(const GatedNormBackward& r, float* dweights,
                                    cudaStream_t stream) {
  if (r.y.rows == 0 || r.y.cols == 0) return cudaSuccess;
  const int64_t width = r.y.cols / r.groups;
  const bool wide = InEights(r.y) && InEights(r.z) && InEights(r.dout) && InEights(r.dy) &&
                    InEights(r.dz) && Aligned(r.weight) && width % kEight == 0;
  const int64_t teams = GatedRowBlocksOf(r.y.rows, r.y.cols, r.groups);
  return WithElements(r.y.dtype, wide, [&](auto element, auto is_wide) {
    return WithTeams(width, is_wide, [&](auto chunks, auto warps) {
      const Blocks blocks = BlocksOf(teams * r.groups, width, warps);
      return Launch(GatedNormBackwardKernel<decltype(element), decltype(is_wide)::value,
                                            decltype(chunks)::value, decltype(warps)::value>,
                    blocks.grid, blocks.threads, 0, stream, r, teams, dweights);
    });
  });
}

}  // namespace nibble::gpu
