// The optimizer's operations on a CUDA card. The sum of squares has the bits of the CPU; AdamW
// differs where the CPU fuses a multiplication and an addition.
//
// Ownership: borrows the backend; owns scratch, which grows to the largest request (growing waits
// for the device). Execution model, thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_OPTIMIZER_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_OPTIMIZER_OPS_H_

#include "absl/status/status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/optimizer_ops.h"

namespace nibble {

class CudaOptimizerOps : public OptimizerOps {
 public:
  explicit CudaOptimizerOps(CudaBackend& backend) : backend_(backend) {}

  absl::Status Run(const SumOfSquares& request) override;
  absl::Status Run(const AdamW& request) override;

 private:
  CudaBackend& backend_;
  Buffer partial_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_OPTIMIZER_OPS_H_
