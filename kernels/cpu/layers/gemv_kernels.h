// y = x·Wᵀ for few rows of x, whose cost is reading W: every element of W is read once for up to
// four rows. Compiled once per instruction set (isa.bzl).
//
// Products and sums are FP32, in an order that depends on `in` alone: neither the number of rows
// nor the division of the outputs among tasks changes a bit.
//
// Ownership: borrows. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_GEMV_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_GEMV_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"

namespace nibble::cpu {

// T and Y are float or uint16_t (BF16); results are rounded once.
template <class T, class Y>
struct GemvTask {
  const T* x;  // [rows, in], rows x_stride apart
  int64_t x_stride;
  int64_t rows;
  const T* w;  // [outputs, in], contiguous: of this task's outputs
  int64_t in;
  int64_t outputs;
  Y* y;  // [rows, outputs], rows y_stride apart
  int64_t y_stride;
};

struct GemvKernels {
  void (*fp32)(const GemvTask<float, float>& task);
  void (*bf16)(const GemvTask<uint16_t, uint16_t>& task);
  void (*bf16_to_fp32)(const GemvTask<uint16_t, float>& task);

  static const GemvKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_GEMV_KERNELS_H_
