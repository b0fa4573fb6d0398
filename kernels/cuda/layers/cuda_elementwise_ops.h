// Non-linearities, biases, casts, sums and initial values on a CUDA card.
//
// Ownership: borrows the backend; owns scratch for partial sums, which grows to the widest request
// (growing waits for the device). Execution model, thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_ELEMENTWISE_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_ELEMENTWISE_OPS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/elementwise_ops.h"

namespace nibble {

class CudaElementwiseOps : public ElementwiseOps {
 public:
  explicit CudaElementwiseOps(CudaBackend& backend) : backend_(backend) {}

  absl::Status Forward(const ActivationForward& request) override;
  absl::Status Backward(const ActivationBackward& request) override;
  absl::Status Forward(const BiasForward& request) override;
  absl::Status Backward(const BiasBackward& request) override;
  absl::Status Run(const Cast& request) override;
  absl::Status Run(const Accumulate& request) override;
  absl::Status Run(const CopyParts& request) override;
  absl::Status Run(const FillInitial& request) override;
  absl::Status Zero(void* data, int64_t bytes) override;
  size_t ScratchBytes(const BiasBackward& request) const override;

 private:
  CudaBackend& backend_;
  Buffer partial_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_ELEMENTWISE_OPS_H_
