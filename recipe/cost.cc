#include "recipe/cost.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "recipe/operand_roles.h"
#include "recipe/render.h"

namespace nibble {
namespace {

// Fractions of the 16-bit time.
double RelativeTime(const OperandFormat& operand) {
  return operand ? ElementBits(Info(operand->format).element) / 16.0 : 1.0;
}

}  // namespace

absl::StatusOr<GemmCost> CostOf(const ResolvedRecipe& recipe, const Outline& outline,
                                int64_t sequence) {
  NIBBLE_RETURN_IF_ERROR(CheckLayers(recipe, outline));
  if (sequence < 1) {
    return absl::InvalidArgumentError(absl::StrCat("sequence: ", sequence, "; allowed: 1 or more"));
  }
  const FlopsPerToken flops = CountFlops(outline, sequence);
  const double whole = 3 * (flops.linears + flops.attention);
  if (!(whole > 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("model: '", outline.spec.name, "' has no linear layer and no attention"));
  }
  std::array<double, kLinearGemms> time = {};
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    const double layer_flops = 2 * static_cast<double>(outline.linears[i].in) *
                               static_cast<double>(outline.linears[i].out);
    for (const LinearGemm gemm : kAllLinearGemms) {
      const auto [a, b] = OperandsOf(gemm);
      time[static_cast<size_t>(gemm)] += layer_flops * std::max(RelativeTime(recipe.layers[i][a]),
                                                                RelativeTime(recipe.layers[i][b]));
    }
  }
  return GemmCost{time[0] / whole, time[1] / whole, time[2] / whole, 3 * flops.attention / whole};
}

absl::StatusOr<GemmCost> CostOf(const Timeline& timeline, const Outline& outline, int64_t sequence,
                                int64_t steps) {
  if (steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat("steps: ", steps, "; allowed: 1 or more"));
  }
  GemmCost mean;
  for (int64_t step = 0; step >= 0 && step < steps;) {
    const int64_t next = timeline.NextSwitchAfter(step);
    const int64_t end = next < 0 ? steps : std::min(next, steps);
    const absl::StatusOr<ResolvedRecipe> recipe = Resolve(timeline.At(step).recipe, outline, 0);
    if (!recipe.ok()) return recipe.status();
    NIBBLE_ASSIGN_OR_RETURN(const GemmCost cost, CostOf(*recipe, outline, sequence));
    const double share = static_cast<double>(end - step) / static_cast<double>(steps);
    mean.fprop += share * cost.fprop;
    mean.dgrad += share * cost.dgrad;
    mean.wgrad += share * cost.wgrad;
    mean.attention += share * cost.attention;
    step = end;
  }
  return mean;
}

}  // namespace nibble
