#include "client/sensitivity/ranking.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace nibble {
namespace {

double MeanOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

// The loss of each repeat of an arm.
using Losses = std::map<int64_t, double>;

std::vector<double> Improvements(const Losses& control, const Losses& arm) {
  std::vector<double> improvements;
  for (const auto& [repeat, loss] : arm) {
    const auto paired = control.find(repeat);
    if (paired != control.end()) improvements.push_back(paired->second - loss);
  }
  return improvements;
}

// The ratio of the means of paired values, with the standard error of its residuals.
std::optional<Estimate> Share(const Losses& control, const Losses& arm, const Losses& bound) {
  std::vector<double> improvements, gaps;
  for (const auto& [repeat, loss] : arm) {
    const auto base = control.find(repeat);
    const auto best = bound.find(repeat);
    if (base == control.end() || best == bound.end()) continue;
    improvements.push_back(base->second - loss);
    gaps.push_back(base->second - best->second);
  }
  if (gaps.empty() || !EstimateOf(gaps).significant()) return std::nullopt;
  const double gap = MeanOf(gaps);
  Estimate share = {.mean = MeanOf(improvements) / gap,
                    .error = std::nullopt,
                    .count = static_cast<int64_t>(gaps.size())};
  std::vector<double> residuals;
  for (size_t i = 0; i < gaps.size(); ++i) {
    residuals.push_back((improvements[i] - share.mean * gaps[i]) / gap);
  }
  share.error = EstimateOf(residuals).error;
  return share;
}

// Improvement per added time; promotions that cost nothing come first.
double Value(const RankedArm& arm) {
  if (arm.added_time <= 0) return INFINITY;
  return arm.improvement->mean / arm.added_time;
}

}  // namespace

double StudentT975(int64_t degrees) {
  constexpr std::array<double, 30> kTable = {
      12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
      2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
      2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  const auto last = static_cast<int64_t>(kTable.size());
  if (degrees <= last) return kTable[static_cast<size_t>(std::max<int64_t>(degrees, 1) - 1)];
  // The first terms of the expansion in 1 / degrees around the normal quantile.
  constexpr double kZ = 1.959964;
  constexpr double kZ2 = kZ * kZ;
  const auto n = static_cast<double>(degrees);
  return kZ + kZ * (kZ2 + 1) / (4 * n) + kZ * ((5 * kZ2 + 16) * kZ2 + 3) / (96 * n * n);
}

bool Estimate::significant() const {
  return error.has_value() && mean > *error * StudentT975(count - 1);
}

Estimate EstimateOf(const std::vector<double>& values) {
  Estimate estimate = {
      .mean = MeanOf(values), .error = std::nullopt, .count = static_cast<int64_t>(values.size())};
  if (values.size() < 2) return estimate;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
  const auto n = static_cast<double>(values.size());
  estimate.error = std::sqrt(squares / (n - 1) / n);
  return estimate;
}

absl::StatusOr<double> ComparedLoss(const Experiment& experiment,
                                    const std::vector<std::pair<int64_t, double>>& losses) {
  const std::map<int64_t, double> by_step(losses.begin(), losses.end());
  double sum = 0;
  for (int64_t step = experiment.first_compared(); step < experiment.end_step(); ++step) {
    const auto found = by_step.find(step);
    if (found == by_step.end()) {
      return absl::FailedPreconditionError(absl::StrCat("the loss of step ", step, " is missing"));
    }
    if (!std::isfinite(found->second)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the loss of step ", step, " is ", found->second));
    }
    sum += found->second;
  }
  return sum / static_cast<double>(experiment.end_step() - experiment.first_compared());
}

absl::StatusOr<Ranking> Rank(const Experiment& experiment, const std::vector<ForkResult>& forks) {
  std::vector<Losses> losses(experiment.arms.size());
  Ranking ranking;
  for (const ForkResult& fork : forks) {
    if (fork.loss) {
      losses[fork.arm][fork.repeat] = *fork.loss;
    } else {
      ranking.not_counted.push_back(absl::StrCat(fork.job, " (", ArmName(experiment.arms[fork.arm]),
                                                 ", repeat ", fork.repeat, "): ", fork.problem));
    }
  }
  size_t control = 0, bound = 0;
  for (size_t i = 0; i < experiment.arms.size(); ++i) {
    if (experiment.arms[i].kind == ArmKind::kControl) control = i;
    if (experiment.arms[i].kind == ArmKind::kBound) bound = i;
  }
  if (losses[control].empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no fork with the unchanged recipe has losses to compare with",
        ranking.not_counted.empty() ? "" : ": ", absl::StrJoin(ranking.not_counted, "; ")));
  }
  const double base_time = experiment.arms[control].gemm_time;
  const auto ranked = [&](size_t arm) {
    RankedArm result = {.arm = arm,
                        .improvement = std::nullopt,
                        .share = std::nullopt,
                        .added_time = experiment.arms[arm].gemm_time / base_time - 1};
    const std::vector<double> improvements = Improvements(losses[control], losses[arm]);
    if (!improvements.empty()) result.improvement = EstimateOf(improvements);
    result.share = Share(losses[control], losses[arm], losses[bound]);
    return result;
  };
  std::vector<double> of_control;
  for (const auto& [repeat, loss] : losses[control]) of_control.push_back(loss);
  ranking.control = EstimateOf(of_control);
  ranking.bound = ranked(bound);
  for (size_t i = 0; i < experiment.arms.size(); ++i) {
    if (experiment.arms[i].kind == ArmKind::kGroup) ranking.groups.push_back(ranked(i));
  }
  std::stable_sort(ranking.groups.begin(), ranking.groups.end(),
                   [](const RankedArm& a, const RankedArm& b) {
                     if (!a.improvement || !b.improvement) {
                       return a.improvement.has_value() && !b.improvement.has_value();
                     }
                     return a.improvement->mean > b.improvement->mean;
                   });
  for (size_t i = 0; i < ranking.groups.size(); ++i) {
    const RankedArm& group = ranking.groups[i];
    if (!group.improvement || !group.improvement->significant()) continue;
    if (!ranking.best) ranking.best = i;
    if (!ranking.cheapest || Value(group) > Value(ranking.groups[*ranking.cheapest])) {
      ranking.cheapest = i;
    }
  }
  return ranking;
}

}  // namespace nibble
