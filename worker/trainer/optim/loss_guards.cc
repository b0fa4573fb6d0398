#include "worker/trainer/optim/loss_guards.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {

SpikeGuard::Level SpikeGuard::level() const {
  const auto n = static_cast<double>(state_.losses.size());
  double mean = 0;
  for (const double seen : state_.losses) mean += seen / n;
  double variance = 0;
  for (const double seen : state_.losses) variance += (seen - mean) * (seen - mean) / n;
  const double least =
      std::max(kLeastDeviation * std::abs(mean), std::numeric_limits<double>::min());
  return {mean, std::max(std::sqrt(variance), least)};
}

double SpikeGuard::Bound() const {
  if (!full()) return std::numeric_limits<double>::infinity();
  const Level at = level();
  return at.mean + options_.z * at.deviation;
}

SpikeGuard::Verdict SpikeGuard::Observe(double loss) {
  if (!std::isfinite(loss)) {
    return {.spike = true, .z = std::numeric_limits<double>::infinity()};
  }
  Verdict verdict;
  if (full()) {
    const Level at = level();
    verdict.z = (loss - at.mean) / at.deviation;
    verdict.spike = loss > Bound();
  }
  if (verdict.spike) {
    ++state_.in_a_row;
    if (state_.in_a_row < kMostInARow) return verdict;
    verdict.new_level = true;
    state_.losses.clear();
  }
  state_.in_a_row = 0;
  if (full()) state_.losses.erase(state_.losses.begin());
  state_.losses.push_back(loss);
  return verdict;
}

absl::Status SpikeGuard::Restore(State state) {
  for (const double loss : state.losses) {
    if (!std::isfinite(loss)) {
      return absl::InvalidArgumentError(absl::StrCat("losses: ", loss, " is not finite"));
    }
  }
  if (state.in_a_row < 0 || state.in_a_row >= kMostInARow) {
    return absl::InvalidArgumentError(
        absl::StrCat("in_a_row: ", state.in_a_row, " is not in [0, ", kMostInARow, ")"));
  }
  const auto size = static_cast<int64_t>(state.losses.size());
  if (size > options_.window) {
    state.losses.erase(state.losses.begin(), state.losses.end() - options_.window);
  }
  state_ = std::move(state);
  return absl::OkStatus();
}

}  // namespace nibble
