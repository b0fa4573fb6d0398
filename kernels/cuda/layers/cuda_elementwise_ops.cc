#include "kernels/cuda/layers/cuda_elementwise_ops.h"

#include "common/status_macros.h"
#include "kernels/cuda/layers/column_sum_kernels.h"
#include "kernels/cuda/layers/copy_kernels.h"
#include "kernels/cuda/layers/cuda_scratch.h"
#include "kernels/cuda/layers/elementwise_kernels.h"
#include "kernels/cuda/layers/step_kernels.h"

namespace nibble {

absl::Status CudaElementwiseOps::Forward(const ActivationForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.amax != nullptr) NIBBLE_RETURN_IF_ERROR(Zero(request.amax, sizeof(float)));
  return StatusOf(gpu::LaunchActivation(request, backend_.stream()),
                  "launch of the activation kernel");
}

absl::Status CudaElementwiseOps::Backward(const ActivationBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.amax != nullptr) NIBBLE_RETURN_IF_ERROR(Zero(request.amax, sizeof(float)));
  return StatusOf(gpu::LaunchActivationBackward(request, backend_.stream()),
                  "launch of the activation's backward kernel");
}

absl::Status CudaElementwiseOps::Forward(const BiasForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchAddBias(request, backend_.stream()), "launch of the bias kernel");
}

absl::Status CudaElementwiseOps::Backward(const BiasBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  const int64_t rows = request.dy.rows, cols = request.dy.cols;
  const int64_t blocks = gpu::RowBlocksOf(rows, cols);
  NIBBLE_ASSIGN_OR_RETURN(float* const partial, Scratch<float>(backend_, partial_, blocks * cols));
  NIBBLE_RETURN_IF_ERROR(StatusOf(gpu::LaunchColumnSums(request.dy, partial, backend_.stream()),
                                  "launch of the kernel of partial column sums"));
  return StatusOf(gpu::LaunchAddColumnSums(partial, blocks, cols, request.dbias, backend_.stream()),
                  "launch of the column sum kernel");
}

size_t CudaElementwiseOps::ScratchBytes(const BiasBackward& request) const {
  const ConstMatrix& dy = request.dy;
  return static_cast<size_t>(gpu::RowBlocksOf(dy.rows, dy.cols) * dy.cols) * sizeof(float);
}

absl::Status CudaElementwiseOps::Run(const Cast& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchCast(request, backend_.stream()), "launch of the cast kernel");
}

absl::Status CudaElementwiseOps::Run(const Accumulate& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchAccumulate(request, backend_.stream()),
                  "launch of the accumulating kernel");
}

absl::Status CudaElementwiseOps::Run(const CopyParts& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchCopyParts(request, backend_.stream()), "launch of the copy kernel");
}

absl::Status CudaElementwiseOps::Run(const FillInitial& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchFillInitial(request, backend_.stream()),
                  "launch of the kernel of initial values");
}

absl::Status CudaElementwiseOps::Zero(void* data, int64_t bytes) {
  NIBBLE_RETURN_IF_ERROR(ValidateZero(data, bytes));
  return backend_.memory().Fill(data, 0, static_cast<size_t>(bytes));
}

}  // namespace nibble
