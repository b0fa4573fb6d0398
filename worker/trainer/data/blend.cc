#include "worker/trainer/data/blend.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"

namespace nibble {
namespace {

// The data set whose turn index t is, when data set i has had had[i] of the t indices before it.
//
// With λ = w/period, c = 2·(data sets) − 2 and the deficit λ·(t+1) − had, a data set may take its
// turn from a deficit of 1/c on, and must before one of 1 − 1/c; the deadline is the time that
// leaves, (1 − 1/c − deficit)/λ. All is multiplied by c·period to stay in integers, which are below
// 2^9 · 2^17 · 2^2 · 2^17 in the comparison of deadlines.
size_t NextTurn(const std::vector<uint64_t>& weights, const std::vector<uint32_t>& had, int64_t t,
                int64_t period) {
  if (weights.size() == 1) return 0;
  const int64_t c = 2 * static_cast<int64_t>(weights.size()) - 2;
  size_t best = weights.size();
  int64_t best_time = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t weight = static_cast<int64_t>(weights[i]);
    const int64_t deficit = c * (weight * (t + 1) - int64_t{had[i]} * period);
    if (deficit < period) continue;
    const int64_t time = (c - 1) * period - deficit;
    if (best == weights.size() || time * static_cast<int64_t>(weights[best]) < best_time * weight) {
      best = i;
      best_time = time;
    }
  }
  return best;
}

}  // namespace

absl::StatusOr<Blend> Blend::Create(absl::Span<const int64_t> weights) {
  const auto count = static_cast<int64_t>(weights.size());
  if (count < 1 || count > kMaxDatasets) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weights: %d data sets, not 1 to %d", count, int64_t{kMaxDatasets}));
  }
  int64_t divisor = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weights[%d] is %d, not at least 1", i, weights[i]));
    }
    divisor = std::gcd(divisor, weights[i]);
  }
  std::vector<uint64_t> parts;
  int64_t period = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t part = weights[i] / divisor;
    if (part > kMaxPeriod - period) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "weights[%d] is %d, which takes their sum over the common divisor %d above %d", i,
          weights[i], divisor, int64_t{kMaxPeriod}));
    }
    parts.push_back(static_cast<uint64_t>(part));
    period += part;
  }

  std::vector<Turn> turns;
  turns.reserve(period);
  std::vector<uint32_t> had(parts.size(), 0);
  for (int64_t t = 0; t < period; ++t) {
    const size_t next = NextTurn(parts, had, t, period);
    turns.push_back({static_cast<int32_t>(next), had[next]++});
  }
  return Blend(std::move(parts), std::move(turns));
}

BlendPlace Blend::At(uint64_t index) const {
  const Turn& turn = turns_[index % turns_.size()];
  return {turn.dataset, index / turns_.size() * weights_[turn.dataset] + turn.ordinal};
}

uint64_t Blend::CountBefore(uint64_t indices, int32_t dataset) const {
  const uint64_t whole = indices / turns_.size();
  const auto rest = static_cast<ptrdiff_t>(indices % turns_.size());
  return whole * weights_[dataset] +
         static_cast<uint64_t>(
             std::count_if(turns_.begin(), turns_.begin() + rest,
                           [&](const Turn& turn) { return turn.dataset == dataset; }));
}

}  // namespace nibble
