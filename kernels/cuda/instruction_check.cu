#include "kernels/cuda/instruction_check.h"

#include "kernels/cuda/block_encode.h"
#include "kernels/cuda/device_access.cuh"

namespace nibble::gpu {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kBlocks = 132 * 32;

__device__ void Report(InstructionCheck* results, InstructionCheck::Kind kind,
                       unsigned long long compared, uint32_t different, uint32_t example) {
  atomicAdd(&results->compared[kind], compared);
  if (different == 0) return;
  atomicAdd(&results->different[kind], static_cast<unsigned long long>(different));
  results->example[kind] = example;
}

// Whether codes and values of pairs of one-byte numbers are those of the formulas.
template <class E>
__device__ bool SameBytes(float x) {
  const uint32_t code = E::Encode(x);
  // Another number beside it shows which half is which.
  const uint32_t pair = BytePair<E>(x, 1.0f);
  float first = 0, second = 0;
  ValuesOfBytes<E>(pair, first, second);
  return pair == (code | (E::Encode(1.0f) << 8)) && second == 1.0f &&
         (code == E::kNanCode ||
          BitsOf<float>(first) == BitsOf<float>(E::template Decode<float>(code)));
}

// Every FP32 bit pattern.
__global__ __launch_bounds__(kThreads) void CheckEveryValue(InstructionCheck* results) {
  constexpr int kCompared = 5;
  uint32_t wrong[kCompared] = {};
  uint32_t example[kCompared] = {};
  unsigned long long compared = 0;
  for (uint64_t i = uint64_t{blockIdx.x} * kThreads + threadIdx.x; i < (uint64_t{1} << 32);
       i += kBlocks * kThreads) {
    const uint32_t bits = static_cast<uint32_t>(i);
    const float x = FromBits<float>(bits);
    const bool nan = (bits & kMagnitudeBits) > kInfinityBits;
    ++compared;

    const uint32_t pair = Bf16Pair(x, x);
    const uint32_t bf16 = RoundToBf16Bits<float>(x) >> 16;
    const bool same = nan ? (pair & 0x7fffu) > 0x7f80u && (pair & 0x7fff0000u) > 0x7f800000u
                          : pair == (bf16 | (bf16 << 16));
    if (!same) {
      ++wrong[0];
      example[0] = bits;
    }
    if (!SameBytes<E4M3>(x) || !SameBytes<E5M2>(x)) {
      ++wrong[3];
      example[3] = bits;
    }
    if (nan) continue;
    const float magnitude = Magnitude(x);
    if (magnitude >= kSmallestDividedBySix && BitsOf<float>(magnitude) < kInfinityBits &&
        BitsOf<float>(DivideBySix(magnitude)) != BitsOf<float>(magnitude / 6.0f)) {
      ++wrong[4];
      example[4] = bits;
    }
    if (E4M3Code(Magnitude(x)) != (E4M3::Encode(x) & E4M3::kMagnitudeMask)) {
      ++wrong[1];
      example[1] = bits;
    }
    const float v[8] = {x, x, x, x, x, x, x, x};
    const uint32_t code = E2M1::Encode(x) & E2M1::kMagnitudeMask;
    if (NearestMagnitudes(v, 0x1p-3f) != code * 0x11111111u) {
      ++wrong[2];
      example[2] = bits;
    }
  }
  for (int kind = 0; kind < kCompared; ++kind) {
    Report(results, static_cast<InstructionCheck::Kind>(kind), compared, wrong[kind],
           example[kind]);
  }
}

__global__ __launch_bounds__(kThreads) void CheckStochastic(InstructionCheck* results) {
  constexpr uint32_t kFirst = (127u - 14u) << 23;
  constexpr uint32_t kEnd = (127u + 4u) << 23;
  uint32_t wrong = 0;
  uint32_t example = 0;
  unsigned long long compared = 0;
  for (uint32_t bits = kFirst + blockIdx.x * kThreads + threadIdx.x; bits < kEnd;
       bits += kBlocks * kThreads) {
    const float x = FromBits<float>(bits);
    const float v[8] = {x, -x, x, -x, x, -x, x, -x};
#pragma unroll 1
    for (uint32_t byte = 0; byte < 256; byte += 8) {
      const uint32_t random0 = byte * 0x01010101u + 0x03020100u;
      const uint32_t random1 = random0 + 0x04040404u;
      uint32_t expected = 0;
#pragma unroll
      for (uint32_t i = 0; i < 8; ++i) {
        expected |= (E2M1::EncodeStochastic(x, byte + i) & 7u) << (4 * i);
      }
      if (StochasticMagnitudes(v, 0x1p-3f, random0, random1) != expected) {
        ++wrong;
        example = bits;
      }
      compared += 8;
    }
  }
  Report(results, InstructionCheck::kStochastic, compared, wrong, example);
}

}  // namespace

cudaError_t LaunchInstructionCheck(InstructionCheck* results, cudaStream_t stream) {
  cudaError_t error = cudaMemsetAsync(results, 0, sizeof(InstructionCheck), stream);
  if (error != cudaSuccess) return error;
  error = Launch(CheckEveryValue, dim3(kBlocks), kThreads, 0, stream, results);
  if (error != cudaSuccess) return error;
  return Launch(CheckStochastic, dim3(kBlocks), kThreads, 0, stream, results);
}

}  // namespace nibble::gpu
