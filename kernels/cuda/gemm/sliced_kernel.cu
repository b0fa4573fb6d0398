// The tensor-core matmul with scales per slice of K. It exists because cuBLASLt has no BF16 matmul
// that scales partial sums; mma.sync instead of Hopper's wgmma, so that it runs on every card and
// in the emulation. Its limit is the shared memory that mma.sync's operands pass through: 24 KiB
// per 16 elements of K and tile of 128 by 128, 192 cycles where the tensor cores need about 200.
//
// A thread block computes a tile of 128 by 128 of C: 8 warps of 64 by 32. One stage of shared
// memory holds one slice of both operands and their scales; three stages, two of them in flight.
//
// A tile of an operand is 128 rows of 256 bytes, whatever its layout: 128 lines of 128 elements of
// K, or 128 elements of K of 128 lines. Chunk c of 16 bytes of row r is stored at chunk c ^ (r %
// 8), so that the 8 rows that ldmatrix reads at a time are in different banks.
#include <cmath>

#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/gemm/matrix_access.cuh"
#include "kernels/cuda/gemm/sliced_kernels.h"
#include "kernels/cuda/gemm/sum_finish.cuh"

namespace nibble::gpu {
namespace {

constexpr int kTile = 128;
constexpr int kSlice = 128;
constexpr unsigned kThreads = 256;
constexpr int kStages = 3;
constexpr int kRowBytes = 256;
constexpr int kTileBytes = kTile * kRowBytes;
constexpr int kScaleBytes = kTile * 4;
constexpr int kStageBytes = 2 * kTileBytes + 2 * kScaleBytes;
constexpr int kSharedBytes = kStages * kStageBytes;
constexpr int kBand = 8;  // tiles of M that are processed together, for the second-level cache
// A warp's part of the tile, in instructions of 16 by 8.
constexpr int kWarpM = 64, kWarpN = 32;
constexpr int kAcross = kTile / kWarpN;  // warps
constexpr int kMs = kWarpM / 16, kNs = kWarpN / 8;

struct TilePosition {
  int64_t row, col;  // of C
};

// Tiles in bands of kBand tile rows; within a band, down first.
__device__ __forceinline__ TilePosition PositionOf(const SlicedArgs& args, uint32_t index) {
  const auto down = static_cast<uint32_t>((args.m + kTile - 1) / kTile);
  const auto across = static_cast<uint32_t>((args.n + kTile - 1) / kTile);
  const uint32_t band = index / (kBand * across);
  const uint32_t in_band = index - band * (kBand * across);
  const uint32_t left = down - band * kBand;
  const uint32_t height = left < kBand ? left : kBand;
  return {int64_t{band * kBand + in_band % height} * kTile, int64_t{in_band / height} * kTile};
}

// Starts the copy of one slice of an operand, 8 chunks per thread. Chunks whose lines do not exist
// become zeros.
template <bool kKMajor>
__device__ __forceinline__ void StartTile(const SlicedOperand& x, int64_t first_line, int64_t lines,
                                          int64_t slice, uint32_t to) {
  const int chunk = static_cast<int>(threadIdx.x) % 16;
  const int64_t k = slice * kSlice;
  const uint16_t* data = static_cast<const uint16_t*>(x.data);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int row = static_cast<int>(threadIdx.x) / 16 + 16 * i;
    const int64_t line = first_line + (kKMajor ? row : 8 * chunk);
    const int64_t at = kKMajor ? line * x.stride + k + 8 * chunk : (k + row) * x.stride + line;
    const bool valid = line < lines;
    CopyToShared16IfValid(to + static_cast<uint32_t>(row * kRowBytes + 16 * (chunk ^ (row % 8))),
                          valid ? data + at : data, valid);
  }
}

// The scale of one line of one operand, per thread.
struct ScaleCopy {
  const float* from;
  int64_t step;     // per slice
  uint32_t offset;  // in a stage
  bool valid;
};

__device__ __forceinline__ ScaleCopy ScaleCopyOf(const SlicedArgs& args, const TilePosition& tile) {
  const bool second = threadIdx.x >= kTile;
  const int in_tile = static_cast<int>(threadIdx.x) % kTile;
  const ScaleView& view = second ? args.b.slices : args.a.slices;
  const int64_t line = (second ? tile.col : tile.row) + in_tile;
  const bool valid = view.data != nullptr && line < (second ? args.n : args.m);
  const int64_t at = valid ? line / view.line_block * view.line_stride : 0;
  return {view.data + at, view.slice_stride,
          static_cast<uint32_t>(2 * kTileBytes + (second ? kScaleBytes : 0) + 4 * in_tile), valid};
}

// Addresses of this lane's rows for LoadMatrices, relative to a tile; constant but for k. An A
// fragment is 16 lines by 16 of K, two B fragments are 16 lines too, with the middle two matrices
// the other way round.
template <bool kKMajor, bool kIsA>
__device__ __forceinline__ uint32_t FragmentAddress(int first_line, int k_step) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int in_eight = lane % 8;
  // Which half of the lines and of K this lane's matrix is.
  const int line_half = kIsA ? lane / 8 % 2 : lane / 16;
  const int k_half = kIsA ? lane / 16 : lane / 8 % 2;
  int row, chunk;
  if constexpr (kKMajor) {
    row = first_line + 8 * line_half + in_eight;
    chunk = 2 * k_step + k_half;
  } else {
    row = 16 * k_step + 8 * k_half + in_eight;
    chunk = first_line / 8 + line_half;
  }
  return static_cast<uint32_t>(row * kRowBytes + 16 * (chunk ^ in_eight));
}

// The sums pass through shared memory, so that C is read and written along its rows, 4 neighbours
// at a time. The pitch puts the rows of half a warp's pairs in different banks.
constexpr int kSumPitch = kTile + 8;
static_assert(kTile * kSumPitch * 4 <= kSharedBytes);

__device__ __forceinline__ void StageSums(int warp_row, int warp_col,
                                          const float (&sums)[kMs][kNs][4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* staged = reinterpret_cast<float*>(DynamicShared());
#pragma unroll
  for (int mi = 0; mi < kMs; ++mi) {
#pragma unroll
    for (int ni = 0; ni < kNs; ++ni) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = warp_row + 16 * mi + 8 * half + lane / 4;
        const int col = warp_col + 8 * ni + 2 * (lane % 4);
        *reinterpret_cast<float2*>(staged + row * kSumPitch + col) =
            make_float2(sums[mi][ni][2 * half], sums[mi][ni][2 * half + 1]);
      }
    }
  }
}

template <class C, bool kVector>
__device__ __forceinline__ void StoreSums(const SlicedArgs& args, const TilePosition& tile) {
  const int in_tile = 4 * (static_cast<int>(threadIdx.x) % 32);
  const int64_t col = tile.col + in_tile;
  if (col >= args.n) return;
  const int count = args.n - col < 4 ? static_cast<int>(args.n - col) : 4;
  const float alpha = FoldAlpha(args.alpha, args.alpha_a, args.alpha_b);
  float col_scale[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    col_scale[i] = i < count ? ScaleAt(args.b.lines, col + i, 0) : 1.0f;
  }
  const float* staged = reinterpret_cast<const float*>(DynamicShared());
#pragma unroll 4
  for (int i = static_cast<int>(threadIdx.x) / 32; i < kTile; i += kThreads / 32) {
    const int64_t row = tile.row + i;
    if (row >= args.m) break;
    float sums[4];
    FourOf<float, true>::Load(staged + i * kSumPitch + in_tile, 4, sums);
    C* to = static_cast<C*>(args.c) + row * args.c_stride + col;
    C c[4] = {};
    if (args.accumulate) FourOf<C, kVector>::Load(to, count, c);
    const float row_scale = ScaleAt(args.a.lines, row, 0);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      StoreResult(Scaled(sums[j], alpha, row_scale, col_scale[j]), args.accumulate, &c[j]);
    }
    FourOf<C, kVector>::Store(c, count, to);
  }
}

template <class C>
__device__ __forceinline__ void StoreSums(const SlicedArgs& args, const TilePosition& tile) {
  constexpr int64_t kBytes = 4 * sizeof(C);
  const bool vector = args.n % 4 == 0 && args.c_stride % 4 == 0 &&
                      reinterpret_cast<uintptr_t>(args.c) % kBytes == 0;
  if (vector) {
    StoreSums<C, true>(args, tile);
  } else {
    StoreSums<C, false>(args, tile);
  }
}

template <bool kAKMajor, bool kBKMajor>
__global__ __launch_bounds__(kThreads, 1) void SlicedTile(const __grid_constant__ SlicedArgs args) {
  const TilePosition tile = PositionOf(args, blockIdx.x);
  const uint32_t shared = SharedAddress(DynamicShared());
  const int slices = static_cast<int>(args.k / kSlice);
  const ScaleCopy scale = ScaleCopyOf(args, tile);
  // Scales that do not exist are 1 in every stage.
  if (scale.from == nullptr) {
    for (int stage = 0; stage < kStages; ++stage) {
      *reinterpret_cast<float*>(DynamicShared() + stage * kStageBytes + scale.offset) = 1.0f;
    }
  }
  const auto start = [&](int slice) {
    if (slice < slices) {
      const uint32_t stage = shared + static_cast<uint32_t>(slice % kStages) * kStageBytes;
      StartTile<kAKMajor>(args.a, tile.row, args.m, slice, stage);
      StartTile<kBKMajor>(args.b, tile.col, args.n, slice, stage + kTileBytes);
      if (scale.from != nullptr) {
        CopyToShared4IfValid(stage + scale.offset, scale.from + slice * scale.step, scale.valid);
      }
    }
    CommitCopies();  // also an empty group: waiting counts groups
  };
  start(0);
  start(1);

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp_row = warp / kAcross * kWarpM, warp_col = warp % kAcross * kWarpN;
  // -0 + x is x for every x.
  float sums[kMs][kNs][4];
#pragma unroll
  for (int i = 0; i < kMs * kNs * 4; ++i) sums[i / (kNs * 4)][i / 4 % kNs][i % 4] = -0.0f;

  for (int slice = 0; slice < slices; ++slice) {
    WaitForCopiesBut<kStages - 2>();
    __syncthreads();
    // The stage that the previous iteration read; all warps are past it.
    start(slice + kStages - 1);
    const uint32_t stage = static_cast<uint32_t>(slice % kStages) * kStageBytes;
    const uint32_t tile_a = shared + stage, tile_b = tile_a + kTileBytes;

    float partial[kMs][kNs][4] = {};
#pragma unroll
    for (int step = 0; step < kSlice / 16; ++step) {
      uint32_t a[kMs][4], b[kNs / 2][4];
#pragma unroll
      for (int mi = 0; mi < kMs; ++mi) {
        LoadMatrices<!kAKMajor>(a[mi],
                                tile_a + FragmentAddress<kAKMajor, true>(warp_row + 16 * mi, step));
      }
#pragma unroll
      for (int pair = 0; pair < kNs / 2; ++pair) {
        LoadMatrices<!kBKMajor>(
            b[pair], tile_b + FragmentAddress<kBKMajor, false>(warp_col + 16 * pair, step));
      }
#pragma unroll
      for (int mi = 0; mi < kMs; ++mi) {
#pragma unroll
        for (int ni = 0; ni < kNs; ++ni) {
          const uint32_t(&both)[4] = b[ni / 2];
          const uint32_t one[2] = {both[2 * (ni % 2)], both[2 * (ni % 2) + 1]};
          MultiplyBf16(a[mi], one, partial[mi][ni]);
        }
      }
    }

    const float* scales = reinterpret_cast<const float*>(DynamicShared() + stage + 2 * kTileBytes);
    const float* scales_a = scales + warp_row + lane / 4;
    const float* scales_b = scales + kTile + warp_col + 2 * (lane % 4);
#pragma unroll
    for (int mi = 0; mi < kMs; ++mi) {
#pragma unroll
      for (int ni = 0; ni < kNs; ++ni) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float scaled = Times(Times(partial[mi][ni][i], scales_a[16 * mi + 8 * (i / 2)]),
                                     scales_b[8 * ni + i % 2]);
          sums[mi][ni][i] = Plus(sums[mi][ni][i], scaled);
        }
      }
    }
  }
  WaitForCopiesBut<0>();
  __syncthreads();
  StageSums(warp_row, warp_col, sums);
  __syncthreads();
  if (args.c_bf16) {
    StoreSums<uint16_t>(args, tile);
  } else {
    StoreSums<float>(args, tile);
  }
}

__device__ __forceinline__ float ElementAt(const SlicedOperand& x, int64_t line, int64_t k) {
  const int64_t at = x.k_major ? line * x.stride + k : k * x.stride + line;
  return x.f32 ? __ldg(static_cast<const float*>(x.data) + at)
               : DecodeBf16(__ldg(static_cast<const uint16_t*>(x.data) + at));
}

__global__ __launch_bounds__(kThreads) void SlicedNaive(const __grid_constant__ SlicedArgs args) {
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (index >= args.m * args.n) return;
  const int64_t row = index / args.n, col = index % args.n;
  float sum = -0.0f;
  for (int64_t k = 0; k < args.k; k += kSlice) {
    float partial = 0.0f;
    for (int64_t i = k; i < k + kSlice; ++i) {
      partial = std::fma(ElementAt(args.a, row, i), ElementAt(args.b, col, i), partial);
    }
    const float scaled = Times(Times(partial, ScaleAt(args.a.slices, row, k / kSlice)),
                               ScaleAt(args.b.slices, col, k / kSlice));
    sum = Plus(sum, scaled);
  }
  const float alpha = FoldAlpha(args.alpha, args.alpha_a, args.alpha_b);
  const float scaled =
      Scaled(sum, alpha, ScaleAt(args.a.lines, row, 0), ScaleAt(args.b.lines, col, 0));
  if (args.c_bf16) {
    StoreResult(scaled, args.accumulate,
                static_cast<uint16_t*>(args.c) + row * args.c_stride + col);
  } else {
    StoreResult(scaled, args.accumulate, static_cast<float*>(args.c) + row * args.c_stride + col);
  }
}

bool OperandFits(const SlicedOperand& x, int64_t lines) {
  return !x.f32 && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0 &&
         (x.k_major || lines % 8 == 0);
}

}  // namespace

bool SlicedTileTakes(const SlicedArgs& args) {
  return OperandFits(args.a, args.m) && OperandFits(args.b, args.n) && args.k % kSlice == 0;
}

cudaError_t LaunchSlicedTile(const SlicedArgs& args, cudaStream_t stream) {
  const auto kernel = args.a.k_major
                          ? (args.b.k_major ? SlicedTile<true, true> : SlicedTile<true, false>)
                          : (args.b.k_major ? SlicedTile<false, true> : SlicedTile<false, false>);
  const int64_t tiles = ((args.m + kTile - 1) / kTile) * ((args.n + kTile - 1) / kTile);
  return Launch(kernel, dim3(static_cast<unsigned>(tiles)), kThreads, kSharedBytes, stream, args);
}

cudaError_t LaunchSlicedNaive(const SlicedArgs& args, cudaStream_t stream) {
  const int64_t blocks = (args.m * args.n + kThreads - 1) / kThreads;
  return Launch(SlicedNaive, dim3(static_cast<unsigned>(blocks)), kThreads, 0, stream, args);
}

}  // namespace nibble::gpu
