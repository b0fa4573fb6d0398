#include "kernels/cpu/layers/cpu_step_ops.h"

#include <algorithm>
#include <array>

#include "common/status_macros.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble {

absl::Status CpuStepOps::Run(const AddLosses& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  std::array<double, kLossSums> sums = {};
  for (int64_t begin = 0; begin < request.n; begin += kLossSums) {
    const int64_t count = std::min(kLossSums, request.n - begin);
    for (int64_t j = 0; j < count; ++j) sums[j] += request.x[begin + j];
  }
  for (int64_t half = kLossSums / 2; half > 0; half /= 2) {
    for (int64_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  request.numbers->loss += sums[0];
  const int32_t* targets = request.targets;
  request.numbers->targets +=
      static_cast<double>(request.n - std::count(targets, targets + request.n, -1));
  return absl::OkStatus();
}

absl::Status CpuStepOps::Run(const CountNonFinite& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  for (int64_t i = 0; i < request.count; ++i) {
    const auto* head = reinterpret_cast<const QuantHead*>(static_cast<const char*>(request.heads) +
                                                          i * request.stride);
    request.by_head[i] += head->non_finite;
    request.numbers->non_finite += head->non_finite;
  }
  return absl::OkStatus();
}

absl::Status CpuStepOps::Run(const Judge& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  *request.outcome = JudgeStep(request.numbers, request.world, request.max_norm, request.loss_bound,
                               request.norm_bound);
  return absl::OkStatus();
}

}  // namespace nibble
