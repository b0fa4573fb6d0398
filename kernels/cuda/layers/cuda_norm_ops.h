// Norms on a CUDA card. Rows, or groups, of up to 65,536 columns; wider ones are refused.
//
// Ownership: borrows the backend; owns scratch for partial sums, which grows to the widest request
// (growing waits for the device). Execution model, thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_NORM_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_NORM_OPS_H_

#include "absl/status/status.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/norm_ops.h"

namespace nibble {

class CudaNormOps : public NormOps {
 public:
  explicit CudaNormOps(CudaBackend& backend) : backend_(backend) {}

  absl::Status Forward(const AddNormForward& request) override;
  absl::Status Backward(const NormBackward& request) override;
  absl::Status Forward(const GatedNormForward& request) override;
  absl::Status Backward(const GatedNormBackward& request) override;
  size_t ScratchBytes(const NormBackward& request) const override;
  size_t ScratchBytes(const GatedNormBackward& request) const override;

 private:
  CudaBackend& backend_;
  Buffer partial_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_NORM_OPS_H_
