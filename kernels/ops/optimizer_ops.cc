#include "kernels/ops/optimizer_ops.h"

#include <cmath>

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
  return OperandCheck("adamw")
      .That(request.n >= 0, "n is ", request.n, ", below 0")
      .Pointer("param", request.param, request.n)
      .Pointer("m", request.m, request.n)
      .Pointer("v", request.v, request.n)
      .Pointer("grad", request.grad, request.n)
      .That(is_share(request.beta1), "beta1 is ", request.beta1, ", not in [0, 1)")
      .That(is_share(request.beta2), "beta2 is ", request.beta2, ", not in [0, 1)")
      .That(request.eps >= 0, "eps is ", request.eps, ", below 0")
      .That(request.correction1 > 0, "correction1 is ", request.correction1, ", not above 0")
      .That(request.correction2 > 0, "correction2 is ", request.correction2, ", not above 0")
      .That(std::isfinite(request.lr), "lr is ", request.lr)
      .That(std::isfinite(request.decay), "decay is ", request.decay)
      .status();
}

}  // namespace nibble
