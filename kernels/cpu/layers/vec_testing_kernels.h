// The functions of vec.h, one table per instruction set, for their test.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_VEC_TESTING_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_VEC_TESTING_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"

namespace nibble::cpu {

// Arrays have 16 elements unless stated otherwise.
struct VecTestingKernels {
  void (*exp)(const float* x, float* y);
  void (*sigmoid)(const float* x, float* y);
  void (*silu)(const float* x, float* y);
  void (*sqrt)(const float* x, float* y);
  void (*max)(const float* a, const float* b, float* y);
  float (*sum)(const float* x);
  float (*largest)(const float* x);
  void (*to_bf16)(const float* x, uint16_t* y);
  void (*rounded)(const float* x, float* y);
  void (*from_bf16)(const uint16_t* x, float* y);
  // The first n elements, copied by LoadPart and StorePart; all lanes that LoadPart yields.
  void (*part)(const float* x, int64_t n, float* y, float* all);
  void (*part_bf16)(const uint16_t* x, int64_t n, uint16_t* y, float* all);
  void (*first_lanes)(const float* x, int64_t n, float rest, float* y);

  static const VecTestingKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_VEC_TESTING_KERNELS_H_
