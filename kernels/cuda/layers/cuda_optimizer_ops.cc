#include "kernels/cuda/layers/cuda_optimizer_ops.h"

#include "common/status_macros.h"
#include "kernels/cuda/layers/cuda_scratch.h"
#include "kernels/cuda/layers/optimizer_kernels.h"

namespace nibble {

absl::Status CudaOptimizerOps::Run(const SumOfSquares& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_ASSIGN_OR_RETURN(double* const partial,
                          Scratch<double>(backend_, partial_, gpu::SquaresBlocks(request.n)));
  return StatusOf(gpu::LaunchSumOfSquares(request, partial, backend_.stream()),
                  "launch of the sum of squares");
}

absl::Status CudaOptimizerOps::Run(const AdamW& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  return StatusOf(gpu::LaunchAdamW(request, backend_.stream()), "launch of the AdamW kernel");
}

}  // namespace nibble
