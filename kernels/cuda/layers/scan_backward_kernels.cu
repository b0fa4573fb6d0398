// The scan's backward pass inside the chunks, given the states that enter them and the gradients of
// those that leave: one launch, whose neighbouring thread blocks process the two sides
// (scan_backward_inputs.cuh, scan_backward_outputs.cuh) of the same chunk and group at about the
// same time, so that x, dy, S and G come from memory once.
//
// Traffic: per chunk and lane, at 64 columns and state 128, 16 KB each of x, dy, S and G are read
// and 16 KB of dx written: at 128 lanes and 16,384 tokens 1.4 GB, 0.33 ms of a memory that
// copies 4.26 TB/s. The matmuls are 11 MFLOP per chunk and lane, 180 GFLOP at that shape: 0.3 ms
// at the rate of mma.sync; loading its right fragments from shared memory takes a little longer.
#include "kernels/cuda/layers/scan_backward_inputs.cuh"
#include "kernels/cuda/layers/scan_backward_outputs.cuh"

namespace nibble::gpu {
namespace {

using namespace scan;

constexpr int kThreads = 32 * kBlocks;

template <int kP, int kN>
__global__ __launch_bounds__(kThreads,
                             1) void BackwardKernel(const __grid_constant__ ScanArgs args) {
  const int64_t index = blockIdx.x / 2 / args.groups;
  const int group = static_cast<int>(blockIdx.x / 2 % args.groups);
  if (blockIdx.x % 2 == 0) {
    RunInputs<kP, kN>(args, index, group);
  } else {
    RunOutputs<kP, kN>(args, index, group);
  }
}

template <int kP, int kN>
cudaError_t LaunchBackward(const ScanArgs& args, cudaStream_t stream) {
  const auto kernel = BackwardKernel<kP, kN>;
  constexpr int kInputs = InputLayout<kP, kN>::kBytes, kOutputs = OutputLayout<kP, kN>::kBytes;
  constexpr int kBytes = kInputs > kOutputs ? kInputs : kOutputs;
  static_assert(kBytes <= 227 << 10);
  const int64_t blocks = args.chunk_count() * args.groups * 2;
  return Launch(kernel, dim3(static_cast<unsigned>(blocks)), kThreads, kBytes, stream, args);
}

}  // namespace

cudaError_t LaunchScanBackward(const ScanArgs& args, cudaStream_t stream) {
  if (args.tile_state == 64) {
    return args.tile_cols == 32 ? LaunchBackward<32, 64>(args, stream)
                                : LaunchBackward<64, 64>(args, stream);
  }
  return args.tile_cols == 64 ? LaunchBackward<64, 128>(args, stream)
                              : LaunchBackward<80, 128>(args, stream);
}

}  // namespace nibble::gpu
