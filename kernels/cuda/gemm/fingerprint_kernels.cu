// What identifies the bits of a result, so that algorithms can be compared without a second matrix.
// Each element is hashed with its place and the hashes are added as integers: the order does not
// matter.
#include "kernels/cuda/block_sums.cuh"
#include "kernels/cuda/device_access.cuh"
#include "kernels/cuda/gemm/gemm_kernels.h"

namespace nibble::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 16;

// The finaliser of SplitMix64: every bit of the input changes half of the bits of the result.
__device__ __forceinline__ unsigned long long Mixed(unsigned long long x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

template <class Bits>
__global__ __launch_bounds__(kThreads) void Fingerprint(
    const __grid_constant__ FingerprintArgs args) {
  const auto* x = static_cast<const Bits*>(args.x);
  const int64_t elements = args.rows * args.cols;
  unsigned long long sum = 0, nonzero = 0;
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t at = (int64_t{blockIdx.x} * kPerThread + i) * kThreads + threadIdx.x;
    if (at >= elements) break;
    const Bits bits = x[at / args.cols * args.stride + at % args.cols];
    // −0 counts as zero and has bits of its own.
    nonzero += static_cast<Bits>(bits << 1) != 0 ? 1 : 0;
    sum += Mixed(static_cast<unsigned long long>(at) << 32 | bits);
  }
  AddAtomically<kThreads>(args.out->sum, sum);
  AddAtomically<kThreads>(args.out->nonzero, nonzero);
}

}  // namespace

cudaError_t LaunchFingerprint(const FingerprintArgs& args, cudaStream_t stream) {
  const int64_t per_block = int64_t{kThreads} * kPerThread;
  const int64_t blocks = (args.rows * args.cols + per_block - 1) / per_block;
  if (blocks == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(blocks));
  return args.bf16 ? Launch(Fingerprint<uint16_t>, grid, kThreads, 0, stream, args)
                   : Launch(Fingerprint<uint32_t>, grid, kThreads, 0, stream, args);
}

}  // namespace nibble::gpu
