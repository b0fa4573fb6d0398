// Chooses the instance of the fast kernel of one-byte elements, if any; compiled as plain C++.
#include "kernels/cuda/byte_launch.h"

#include <optional>

#include "kernels/cuda/quantize_kernels.h"

namespace nibble::gpu {
namespace {

std::optional<ByteBlocks> BlocksOf(const CopyArgs& copy) {
  const auto is = [&](ScaleType scale, int lines, int length) {
    return copy.scale_type == scale && copy.block_lines == lines && copy.block_length == length;
  };
  if (is(ScaleType::kF32, 0, 0)) return ByteBlocks::kTensor;
  if (copy.code_type != CodeType::kE4M3) return std::nullopt;
  if (is(ScaleType::kE8M0, 1, 32)) return ByteBlocks::kLine32;
  if (is(ScaleType::kF32, 1, 128)) return ByteBlocks::kLine128;
  if (is(ScaleType::kF32, 128, 128)) return ByteBlocks::kSquare;
  return std::nullopt;
}

}  // namespace

bool ByteTakes(const QuantizeArgs& args) {
  const Source& x = args.x;
  const int element = x.f32 ? 4 : 2;
  // 16-byte pieces of rows of the source and of codes, and a grid that exists.
  if (x.cols % 16 != 0 || x.stride * element % 16 != 0 ||
      reinterpret_cast<uintptr_t>(x.data) % 16 != 0 || x.cols > 65535 * 128 ||
      x.rows > int64_t{65535} * 128 * 8) {
    return false;
  }
  const std::optional<ByteBlocks> blocks = BlocksOf(args.copy[0]);
  for (int i = 0; i < args.copies; ++i) {
    const CopyArgs& copy = args.copy[i];
    if (copy.code_type == CodeType::kE2M1 || copy.code_type != args.copy[0].code_type ||
        !blocks.has_value() || BlocksOf(copy) != blocks || copy.stochastic ||
        copy.hadamard_size != 0 || (copy.column && x.rows % 16 != 0) || copy.emulated_transposed) {
      return false;
    }
  }
  return true;
}

cudaError_t LaunchByte(const QuantizeArgs& args, cudaStream_t stream) {
  switch (*BlocksOf(args.copy[0])) {
    case ByteBlocks::kLine32:
      return LaunchByteLine32(args, stream);
    case ByteBlocks::kLine128:
      return LaunchByteLine128(args, stream);
    case ByteBlocks::kSquare:
      return LaunchByteSquare(args, stream);
    case ByteBlocks::kTensor:
      break;
  }
  return LaunchByteTensor(args, stream);
}

}  // namespace nibble::gpu
