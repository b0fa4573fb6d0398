#include "worker/trainer/optim/loss_guards.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {

SpikeGuard::Level SpikeGuard::level() const {
  const auto n = static_cast<double>(state_.values.size());
  double mean = 0;
  for (const double seen : state_.values) mean += seen / n;
  double variance = 0;
  for (const double seen : state_.values) variance += (seen - mean) * (seen - mean) / n;
  const double least =
      std::max(kLeastDeviation * std::abs(mean), std::numeric_limits<double>::min());
  return {mean, std::max(std::sqrt(variance), least)};
}

double SpikeGuard::Bound() const {
  if (!full()) return std::numeric_limits<double>::infinity();
  const Level at = level();
  return at.mean + options_.z * at.deviation;
}

SpikeGuard::Verdict SpikeGuard::Observe(double value) {
  if (!std::isfinite(value)) {
    return {.spike = true, .z = std::numeric_limits<double>::infinity()};
  }
  Verdict verdict;
  if (full()) {
    const Level at = level();
    verdict.z = (value - at.mean) / at.deviation;
    verdict.spike = value > Bound();
  }
  if (verdict.spike) {
    ++state_.in_a_row;
    if (state_.in_a_row < kMostInARow) return verdict;
    verdict.new_level = true;
    state_.values.clear();
  }
  state_.in_a_row = 0;
  if (full()) state_.values.erase(state_.values.begin());
  state_.values.push_back(value);
  return verdict;
}

absl::Status SpikeGuard::Restore(State state) {
  for (const double value : state.values) {
    if (!std::isfinite(value)) {
      return absl::InvalidArgumentError(absl::StrCat("values: ", value, " is not finite"));
    }
  }
  if (state.in_a_row < 0 || state.in_a_row >= kMostInARow) {
    return absl::InvalidArgumentError(
        absl::StrCat("in_a_row: ", state.in_a_row, " is not in [0, ", kMostInARow, ")"));
  }
  const auto size = static_cast<int64_t>(state.values.size());
  if (size > options_.window) {
    state.values.erase(state.values.begin(), state.values.end() - options_.window);
  }
  state_ = std::move(state);
  return absl::OkStatus();
}

}  // namespace nibble
