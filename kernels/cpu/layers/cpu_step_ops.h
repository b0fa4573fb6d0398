// The numbers of a step on the CPU: a few thousand additions, on the caller's thread.
//
// Ownership: none. Execution model: an operation is done when its call returns. Thread-safety: one
// call at a time.
#ifndef NIBBLE_KERNELS_CPU_LAYERS_CPU_STEP_OPS_H_
#define NIBBLE_KERNELS_CPU_LAYERS_CPU_STEP_OPS_H_

#include "absl/status/status.h"
#include "kernels/ops/step_ops.h"

namespace nibble {

class CpuStepOps : public StepOps {
 public:
  absl::Status Run(const AddLosses& request) override;
  absl::Status Run(const CountNonFinite& request) override;
  absl::Status Run(const Judge& request) override;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CPU_LAYERS_CPU_STEP_OPS_H_
