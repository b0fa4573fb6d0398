#include "kernels/ops/step_ops.h"

#include "kernels/ops/operand_check.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble {

absl::Status Validate(const AddLosses& request) {
  return OperandCheck("add losses")
      .That(request.n >= 0, "n is ", request.n, ", below 0")
      .Pointer("x", request.x, request.n)
      .Pointer("targets", request.targets, request.n)
      .Pointer("numbers", request.numbers, 1)
      .status();
}

absl::Status Validate(const CountNonFinite& request) {
  constexpr auto kHead = static_cast<int64_t>(sizeof(QuantHead));
  return OperandCheck("count non-finite")
      .That(request.count >= 0, "count is ", request.count, ", below 0")
      .That(request.count < 2 || (request.stride >= kHead && request.stride % 8 == 0), "stride is ",
            request.stride, ", not a multiple of 8 from ", kHead, " on")
      .Pointer("heads", request.heads, request.count)
      .Pointer("by_head", request.by_head, request.count)
      .Pointer("numbers", request.numbers, 1)
      .status();
}

absl::Status Validate(const Judge& request) {
  return OperandCheck("judge")
      .That(request.world > 0, "world is ", request.world, ", below 1")
      .That(request.max_norm >= 0, "max_norm is ", request.max_norm, ", below 0")
      .That(!std::isnan(request.loss_bound), "loss_bound is NaN")
      .That(!std::isnan(request.norm_bound), "norm_bound is NaN")
      .Pointer("numbers", request.numbers, request.world)
      .Pointer("outcome", request.outcome, 1)
      .status();
}

}  // namespace nibble
