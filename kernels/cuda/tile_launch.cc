// Chooses the tile kernel, if any; compiled as plain C++.
#include "kernels/cuda/tile_launch.h"
#include "kernels/cuda/quantize_kernels.h"

namespace nibble::gpu {
namespace {

constexpr int64_t kLargest = int64_t{1} << 31;

bool StridesFit(const CopyArgs& copy) {
  return copy.code_stride < kLargest && copy.scale_stride < kLargest &&
         2 * copy.emulated_stride < kLargest && copy.row_blocks < static_cast<uint64_t>(kLargest);
}

}  // namespace

bool TileTakes(const QuantizeArgs& args) {
  const Source& x = args.x;
  const int element = x.f32 ? 4 : 2;
  // Requires 16-byte pieces, and sizes that fit the kernels' 32-bit sums and grids.
  if (x.cols % 16 != 0 || x.stride * element % 16 != 0 ||
      reinterpret_cast<uintptr_t>(x.data) % 16 != 0 || x.rows >= kLargest / 2 ||
      x.cols > 65535 * 128 || x.rows > int64_t{65535} * 64 * 8 || x.stride * element >= kLargest) {
    return false;
  }
  for (int i = 0; i < args.copies; ++i) {
    const CopyArgs& copy = args.copy[i];
    if (copy.general || !StridesFit(copy) || (copy.hadamard && !copy.column) ||
        copy.square != args.copy[0].square || copy.stochastic != args.copy[0].stochastic) {
      return false;
    }
  }
  return true;
}

cudaError_t LaunchTile(const QuantizeArgs& args, cudaStream_t stream) {
  if (args.x.f32) {
    return args.copy[0].stochastic ? LaunchTileF32Stochastic(args, stream)
                                   : LaunchTileF32Nearest(args, stream);
  }
  return args.copy[0].stochastic ? LaunchTileBf16Stochastic(args, stream)
                                 : LaunchTileBf16Nearest(args, stream);
}

}  // namespace nibble::gpu
