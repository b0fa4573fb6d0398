// Block scales in the layouts of cuBLASLt. They are a thirty-second of FP8's bytes or less; both
// operands go in one launch.
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/gemm/gemm_kernels.h"
#include "kernels/cuda/gemm/scale_tiles.h"
#include "kernels/cuda/gemm/sum_finish.cuh"

namespace nibble::gpu {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kTile = 32;

struct ArrangePair {
  ArrangeArgs operand[2];
};
struct TileScalesPair {
  TileScalesArgs operand[2];
};

// A tile of 32 lines (or line blocks) by 32 slices, transposed through shared memory so that both
// sides are accessed along rows.
__global__ __launch_bounds__(kThreads) void Arrange(const __grid_constant__ ArrangePair args) {
  __shared__ float tile[kTile][kTile + 1];
  const ArrangeArgs& x = args.operand[blockIdx.z];
  const int64_t line_block = x.blocks ? x.from.line_block : 1;
  const int64_t lines = (x.lines + line_block - 1) / line_block;
  const int64_t padded = (x.slices + 3) / 4 * 4;
  const int64_t first_line = int64_t{blockIdx.x} * kTile;
  const int64_t first_slice = int64_t{blockIdx.y} * kTile;
  const int in_row = static_cast<int>(threadIdx.x) % kTile;
  for (int row = static_cast<int>(threadIdx.x) / kTile; row < kTile;
       row += static_cast<int>(kThreads) / kTile) {
    const int64_t line = first_line + row, slice = first_slice + in_row;
    float value = 0.0f;
    if (line < lines && slice < x.slices) value = ScaleAt(x.from, line * line_block, slice);
    if (!x.blocks) {
      tile[row][in_row] = value;
    } else if (line < lines && slice < padded) {
      x.to[line * padded + slice] = value;
    }
  }
  __syncthreads();
  if (x.blocks) return;
  for (int row = static_cast<int>(threadIdx.x) / kTile; row < kTile;
       row += static_cast<int>(kThreads) / kTile) {
    const int64_t slice = first_slice + row, line = first_line + in_row;
    if (slice < x.slices && line < lines) x.to[slice * lines + line] = tile[in_row][row];
  }
}

// A thread writes the four blocks of one line in one tile.
__global__ __launch_bounds__(kThreads) void TileScales(
    const __grid_constant__ TileScalesPair args) {
  const TileScalesArgs& x = args.operand[blockIdx.z];
  const int64_t words = ScaleTilesBytes(x.lines, x.blocks) / 4;
  const int64_t word = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (word >= words) return;
  const ScalePlace place = ScalePlaceOf(4 * word, x.blocks);
  uint32_t four = 0;
  if (place.line < x.lines) {
    const uint8_t* from = x.from + place.line / x.line_block * x.line_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t block = place.block + i;
      if (block < x.blocks) {
        four |= static_cast<uint32_t>(__ldg(from + block * x.block_stride)) << (8 * i);
      }
    }
  }
  reinterpret_cast<uint32_t*>(x.to)[word] = four;
}

unsigned Count(int64_t size, int64_t step) {
  return static_cast<unsigned>((size + step - 1) / step);
}

int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }

}  // namespace

cudaError_t LaunchArrange(const ArrangeArgs& a, const ArrangeArgs& b, cudaStream_t stream) {
  const ArrangePair pair = {{a, b}};
  const dim3 grid(Count(Larger(a.lines, b.lines), kTile), Count(Larger(a.slices, b.slices), kTile),
                  2);
  return Launch(Arrange, grid, kThreads, 0, stream, pair);
}

cudaError_t LaunchTileScales(const TileScalesArgs& a, const TileScalesArgs& b,
                             cudaStream_t stream) {
  const TileScalesPair pair = {{a, b}};
  const int64_t words =
      Larger(ScaleTilesBytes(a.lines, a.blocks), ScaleTilesBytes(b.lines, b.blocks)) / 4;
  return Launch(TileScales, dim3(Count(words, kThreads), 1, 2), kThreads, 0, stream, pair);
}

}  // namespace nibble::gpu
