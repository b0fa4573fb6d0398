// The scales that a GEMM applies to FP32 sums: alpha with the tensors' scales folded in, and the
// finer FP32 scales of each operand. gemm.h has the definition.
//
// Ownership: borrows the operands' scales. Thread-safety: values.
#ifndef NIBBLE_KERNELS_GEMM_GEMM_SCALES_H_
#define NIBBLE_KERNELS_GEMM_GEMM_SCALES_H_

#include <cstdint>

#include "kernels/gemm/alpha.h"
#include "kernels/gemm/gemm.h"

namespace nibble {

inline constexpr int64_t kSliceDepth = 128;

// One operand's FP32 scales, by its line (its index of M or N) and, with per_slice, by the slice of
// K; without data, every scale is 1.
struct LineScales {
  const float* data = nullptr;  // in the backend's memory
  bool per_slice = false;
  int64_t line_block = 1;  // lines that share a scale
  int64_t line_stride = 0;
  int64_t slice_stride = 0;

  // out[i] = the scale of line first + i. `data` must be in host memory.
  void Gather(int64_t first, int64_t count, int64_t slice, float* out) const {
    for (int64_t i = 0; i < count; ++i) {
      out[i] = data == nullptr
                   ? 1.0f
                   : data[(first + i) / line_block * line_stride + slice * slice_stride];
    }
  }
};

struct GemmScales {
  float alpha = 1.0f;
  LineScales a;
  LineScales b;

  // Whether sums over slices of K must be scaled before they are added up.
  bool sliced() const { return a.per_slice || b.per_slice; }
};

// Alpha's part and line scales of one operand of a validated request without empty dimensions. They
// only point to the operand's figures and scales, which may be in any memory.
AlphaPart AlphaPartOf(const GemmOperand& operand);
LineScales LineScalesOf(const GemmOperand& operand);

// The same for both operands, with alpha computed: figures and scales are in host memory.
GemmScales ScalesOf(const GemmRequest& request);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_GEMM_GEMM_SCALES_H_
