// The element-wise operations (kernels/ops/elementwise_ops.h) on one patch of their matrices, per
// instruction set. Requests are valid; null pointers have the same meaning as there.
//
// Ownership: borrows. Thread-safety: pure functions; patches that do not overlap may run
// concurrently.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_ELEMENTWISE_KERNELS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_ELEMENTWISE_KERNELS_H_

#include "kernels/cpu/layers/blocks.h"
#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/ops/elementwise_ops.h"

namespace nibble::cpu {

// Arrays are indexed by Activation and DType. Activations return the largest |result| of the patch.
// A patch is of `out`; in SwiGLU's backward pass both halves of din are written for it.
struct ElementwiseKernels {
  float (*forward[3][2])(const ActivationForward& request, const BlockPatch& patch);
  float (*backward[3][2])(const ActivationBackward& request, const BlockPatch& patch);
  void (*add_bias[2])(const BiasForward& request, const BlockPatch& patch);
  void (*cast[2][2])(const Cast& request, const BlockPatch& patch);              // [from][to]
  void (*accumulate[2][2])(const Accumulate& request, const BlockPatch& patch);  // [from][to]

  static const ElementwiseKernels baseline, avx2, avx512;
};

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_LAYERS_ELEMENTWISE_KERNELS_H_
