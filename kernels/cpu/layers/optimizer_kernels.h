// The arithmetic of the update (kernels/ops/optimizer_ops.h) on a range of elements, per
// instruction set.
//
// Thread-safety: pure functions; ranges that do not overlap may run concurrently.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_OPTIMIZER_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_OPTIMIZER_KERNELS_H_

#include <cstdint>

#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/ops/optimizer_ops.h"

namespace nibble::cpu {

struct OptimizerKernels {
  // Σ x[i]² in FP64: sixteen separate sums, then added in pairs.
  double (*sum_of_squares)(const float* x, int64_t n);
  // Elements [begin, end) of a run; `scale`: of the gradients. Returns the largest magnitude of the
  // updated ones.
  float (*adam_w)(const AdamW& request, const AdamWRun& run, float scale, int64_t begin,
                  int64_t end);

  static const OptimizerKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_OPTIMIZER_KERNELS_H_
