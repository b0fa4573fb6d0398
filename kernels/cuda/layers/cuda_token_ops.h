// Embedding and cross entropy on a CUDA card. A token, position or target out of bounds is an error
// of the queue, which the backend reports where it waits; its row contributes nothing.
//
// Sums of the embedding's backward pass are in ascending order of tokens in groups of 64, and then
// of the groups.
//
// Ownership: borrows the backend; owns scratch, which grows to the largest request (growing waits
// for the device). Execution model, thread-safety: as Backend.
#ifndef NIBBLE_KERNELS_CUDA_LAYERS_CUDA_TOKEN_OPS_H_
#define NIBBLE_KERNELS_CUDA_LAYERS_CUDA_TOKEN_OPS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/token_ops.h"

namespace nibble {

class CudaTokenOps : public TokenOps {
 public:
  explicit CudaTokenOps(CudaBackend& backend) : backend_(backend) {}

  absl::Status Forward(const EmbeddingForward& request) override;
  absl::Status Backward(const EmbeddingBackward& request) override;
  absl::Status Run(const CrossEntropy& request) override;
  size_t ScratchBytes(const EmbeddingBackward& request) const override;

 private:
  // [tokens]
  absl::StatusOr<const int32_t*> Positions(const SequenceLayout& layout);
  absl::Status AddByKey(const ConstMatrix& from, const int32_t* keys, int64_t bound, float* table);

  CudaBackend& backend_;
  Buffer positions_, sorted_, partial_;
};

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_LAYERS_CUDA_TOKEN_OPS_H_
