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

// The kernels copy 16-byte pieces, and have 32-bit sums and grids.
bool SourceFits(const Source& x) {
  const int element = x.f32 ? 4 : 2;
  return x.cols % 16 == 0 && x.stride * element % 16 == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.rows < kLargest / 2 &&
         x.cols <= 65535 * 128 && x.rows <= int64_t{65535} * 64 * 8 &&
         x.stride * element < kLargest;
}

}  // namespace

bool TileTakes(const QuantizeArgs& args) {
  if (!SourceFits(args.x)) return false;
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

bool MxTakes(const QuantizeArgs& args) {
  const Source& x = args.x;
  if (!SourceFits(x)) return false;
  for (int i = 0; i < args.copies; ++i) {
    const CopyArgs& copy = args.copy[i];
    const bool square = copy.block_lines == 32;
    if (copy.code_type != CodeType::kE2M1 || copy.scale_type != ScaleType::kE8M0 ||
        copy.block_length != 32 || !StridesFit(copy) || copy.code_stride % 16 != 0 ||
        copy.block_lines != args.copy[0].block_lines ||
        copy.stochastic != args.copy[0].stochastic ||
        (copy.hadamard_size != 0 && (copy.hadamard_size != 32 || !copy.column)) ||
        ((copy.column || square) && x.rows % 32 != 0) ||
        ((!copy.column || square) && x.cols % 32 != 0)) {
      return false;
    }
  }
  return true;
}

cudaError_t LaunchMx(const QuantizeArgs& args, cudaStream_t stream) {
  TilePair pair = {};
  pair.x = args.x;
  for (int i = 0; i < args.copies; ++i) {
    const CopyArgs& copy = args.copy[i];
    (copy.column ? pair.column : pair.row) = true;
    (copy.column ? pair.column_copy : pair.row_copy) = copy;
  }
  if (pair.x.f32) {
    return args.copy[0].stochastic ? LaunchMxF32Stochastic(pair, stream)
                                   : LaunchMxF32Nearest(pair, stream);
  }
  return args.copy[0].stochastic ? LaunchMxBf16Stochastic(pair, stream)
                                 : LaunchMxBf16Nearest(pair, stream);
}

}  // namespace nibble::gpu
