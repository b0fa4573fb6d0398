// Normalisation (kernels/ops/norm_ops.h) of a run of rows, per instruction set. Requests are valid.
//
// Where a mean of squares is not finite, be it that an element is not or that squares overflow,
// rstd is NaN, and with it the row: dividing by infinity would leave zeros that hide it.
//
// Ownership: borrows. Thread-safety: pure functions; runs of different rows may go at once, each
// with scratch and partial sums of its own.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_NORM_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_NORM_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/ops/norm_ops.h"

namespace nibble::cpu {

// Rows [begin, end); arrays are indexed by DType. Forward passes return the largest |out| as
// rounded, NaN left out; backward passes write the rows' sums for dweight and dbias (where
// centered) to dweight, dbias: [d]. scratch: [width of a group] of one thread.
struct NormKernels {
  float (*forward[2])(const AddNormForward& request, int64_t begin, int64_t end);
  void (*backward[2])(const NormBackward& request, int64_t begin, int64_t end, float* dweight,
                      float* dbias);
  float (*gated_forward[2])(const GatedNormForward& request, int64_t begin, int64_t end,
                            float* scratch);
  void (*gated_backward[2])(const GatedNormBackward& request, int64_t begin, int64_t end,
                            float* dweight, float* scratch);
};

namespace baseline {
extern const NormKernels kNormKernels;
}
namespace avx2 {
extern const NormKernels kNormKernels;
}
namespace avx512 {
extern const NormKernels kNormKernels;
}

inline const NormKernels& NormKernelsFor(LayerIsa isa) {
  return TableFor(isa, baseline::kNormKernels, avx2::kNormKernels, avx512::kNormKernels);
}

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_NORM_KERNELS_H_
