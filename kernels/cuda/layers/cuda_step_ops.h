// The numbers of a step on the card, with the bits of the CPU.
//
// Ownership: borrows the backend. Thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_STEP_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_STEP_OPS_H_

#include "absl/status/status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/step_ops.h"

namespace nibble {

class CudaStepOps : public StepOps {
 public:
  explicit CudaStepOps(CudaBackend& backend) : backend_(backend) {}

  absl::Status Run(const AddLosses& request) override;
  absl::Status Run(const CountNonFinite& request) override;
  absl::Status Run(const Judge& request) override;

 private:
  CudaBackend& backend_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_STEP_OPS_H_
