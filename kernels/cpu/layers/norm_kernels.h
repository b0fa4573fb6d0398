// Normalisation (kernels/ops/norm_ops.h) of a range of rows, per instruction set. Requests are
// valid.
//
// If a mean of squares is not finite, because of an element or of overflow, rstd is NaN, and with
// it the row: dividing by infinity would yield zeros that hide the error.
//
// Ownership: borrows. Thread-safety: pure functions; ranges of different rows may run concurrently,
// each with its own scratch and partial sums.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_NORM_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_NORM_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/ops/norm_ops.h"

namespace nibble::cpu {

// Rows [begin, end); arrays are indexed by DType. Forward passes return the largest |out| as
// rounded, without NaN; backward passes write the rows' sums for dweight and dbias (if centered) to
// dweight, dbias: [d]. scratch: [width of a group] of one thread.
struct NormKernels {
  float (*forward[2])(const AddNormForward& request, int64_t begin, int64_t end);
  void (*backward[2])(const NormBackward& request, int64_t begin, int64_t end, float* dweight,
                      float* dbias);
  float (*gated_forward[2])(const GatedNormForward& request, int64_t begin, int64_t end,
                            float* scratch);
  void (*gated_backward[2])(const GatedNormBackward& request, int64_t begin, int64_t end,
                            float* dweight, float* scratch);

  static const NormKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_NORM_KERNELS_H_
