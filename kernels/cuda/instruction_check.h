// Compares, on the card, the single instructions and the rounding sequences of the fast kernels
// with the formulas of kernels/formats: over every FP32 value, and for stochastic rounding over
// every value from 2^-14 to 16 with every random byte.
//
// Thread-safety: as CUDA streams.
#ifndef NIBBLE_KERNELS_CUDA_INSTRUCTION_CHECK_H_
#define NIBBLE_KERNELS_CUDA_INSTRUCTION_CHECK_H_

#include <cuda_runtime.h>

#include <cstdint>

namespace nibble::gpu {

struct InstructionCheck {
  enum Kind { kBf16, kE4M3, kNearest, kBytes, kSixth, kStochastic, kKinds };
  unsigned long long compared[kKinds];
  unsigned long long different[kKinds];
  uint32_t example[kKinds];  // bits of a differing value
};
// `results` is in device memory; it is cleared first.
cudaError_t LaunchInstructionCheck(InstructionCheck* results, cudaStream_t stream);

}  // namespace nibble::gpu

#endif  // NIBBLE_KERNELS_CUDA_INSTRUCTION_CHECK_H_
