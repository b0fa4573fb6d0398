#include "kernels/ops/optimizer_ops.h"

#include <cmath>

#include "common/status_macros.h"
#include "kernels/ops/operand_check.h"

namespace nibble {

absl::Status Validate(const SumOfSquares& request) {
  return OperandCheck("sum of squares")
      .That(request.n >= 0, "n is ", request.n, ", below 0")
      .Pointer("x", request.x, request.n)
      .Pointer("sum", request.sum, 1)
      .status();
}

absl::Status Validate(const AdamW& request) {
  const auto is_share = [](float beta) { return beta >= 0 && beta < 1; };
  for (const AdamWRun& run : request.runs) {
    NIBBLE_RETURN_IF_ERROR(OperandCheck("adamw")
                               .That(run.n >= 0, "n is ", run.n, ", below 0")
                               .Pointer("param", run.param, run.n)
                               .Pointer("m", run.m, run.n)
                               .Pointer("v", run.v, run.n)
                               .Pointer("grad", run.grad, run.n)
                               .That(std::isfinite(run.decay), "decay is ", run.decay)
                               .status());
  }
  return OperandCheck("adamw")
      .That(is_share(request.beta1), "beta1 is ", request.beta1, ", not in [0, 1)")
      .That(is_share(request.beta2), "beta2 is ", request.beta2, ", not in [0, 1)")
      .That(request.eps >= 0, "eps is ", request.eps, ", below 0")
      .That(request.correction1 > 0, "correction1 is ", request.correction1, ", not above 0")
      .That(request.correction2 > 0, "correction2 is ", request.correction2, ", not above 0")
      .That(std::isfinite(request.lr), "lr is ", request.lr)
      .status();
}

}  // namespace nibble
