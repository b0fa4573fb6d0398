// What the forks of an experiment have shown: the improvement of the loss by each promotion, with
// its standard error over repeats, beside its cost.
//
// Per repeat, the loss of a fork is its mean over the compared steps, and the improvement of an arm
// is the control's loss minus the arm's: the same samples, so that most of the noise cancels. Over
// n repeats the standard error is the standard deviation of the improvements over √n. An
// improvement is significant if it exceeds its standard error times Student's t for n − 1 degrees
// of freedom (97.5 %): 12.7 for two repeats, 4.3 for three, 2.8 for five.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_SENSITIVITY_RANKING_H_
#define NIBBLE_CLIENT_SENSITIVITY_RANKING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/sensitivity/fork_plan.h"

namespace nibble {

// The mean of n values.
struct Estimate {
  double mean = 0;
  std::optional<double> error;  // standard error; unset for one value
  int64_t count = 0;            // n

  // Whether the mean is above 0 by more than the noise explains.
  bool significant() const;
};
// `values` is not empty.
Estimate EstimateOf(const std::vector<double>& values);
// The 97.5 % quantile of Student's t; `degrees` at least 1.
double StudentT975(int64_t degrees);

// A fork that has ended.
struct ForkResult {
  size_t arm = 0;
  int64_t repeat = 0;
  std::string job;             // id
  std::optional<double> loss;  // mean of the compared steps; unset with a problem
  std::string problem;         // why it has no loss
};

// The mean of the losses of the compared steps, given as (step, loss). FailedPrecondition names the
// first step that is missing or whose loss is not finite.
absl::StatusOr<double> ComparedLoss(const Experiment& experiment,
                                    const std::vector<std::pair<int64_t, double>>& losses);

// One promotion.
struct RankedArm {
  size_t arm = 0;
  std::optional<Estimate> improvement;  // unset: no repeat has both losses
  // Of the gap between the control and BF16, with the standard error of the ratio; unset unless the
  // gap is significant.
  std::optional<Estimate> share;
  double added_time = 0;  // theoretical GEMM time relative to the control's: 0.05 is 5 % more
};

struct Ranking {
  Estimate control;               // the loss of the control
  RankedArm bound;                // everything in BF16: its improvement is the gap
  std::vector<RankedArm> groups;  // the greatest improvement first, those without one last
  std::optional<size_t> best;     // in `groups`: the first one with a significant improvement
  std::optional<size_t>
      cheapest;  // in `groups`: the significant one with most improvement per time
  // Forks without a loss, "train-9 (control, repeat 2): why". Without a control's no arm has that
  // repeat.
  std::vector<std::string> not_counted;
};

// FailedPrecondition if no fork of the control has losses, naming the first problem.
absl::StatusOr<Ranking> Rank(const Experiment& experiment, const std::vector<ForkResult>& forks);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SENSITIVITY_RANKING_H_
