#include "kernels/cuda/layers/cuda_step_ops.h"

#include "common/status_macros.h"
#include "kernels/cuda/layers/step_kernels.h"

namespace nibble {

absl::Status CudaStepOps::Run(const AddLosses& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchAddLosses(request, backend_.stream()), "launch of the loss kernel");
}

absl::Status CudaStepOps::Run(const CountNonFinite& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  if (request.count == 0) return absl::OkStatus();
  return StatusOf(gpu::LaunchCountNonFinite(request, backend_.stream()),
                  "launch of the kernel that counts NaN and infinities");
}

absl::Status CudaStepOps::Run(const Judge& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchJudge(request, backend_.stream()), "launch of the judging kernel");
}

}  // namespace nibble
