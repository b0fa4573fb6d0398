// The losses of several jobs side by side, at equal steps or at equal tokens.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_LOSS_COMPARISON_H_
#define NIBBLE_CLIENT_REMOTE_LOSS_COMPARISON_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/shell/output.h"
#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// More samples than a coordinator stores per job, so that it does not thin them: thinning could
// remove the steps that jobs have in common.
inline constexpr int kMostComparedSamples = 1 << 20;

struct LossSeries {
  std::string job;
  std::vector<v1::StepSample> samples;  // by step
};

// What the losses in a row of a comparison have in common: the step, or the tokens trained on, for
// jobs with different numbers of tokens per step.
enum class ComparedBy : uint8_t { kStep, kTokens };

struct ComparedLosses {
  int64_t at = 0;              // step or tokens
  std::vector<double> losses;  // by job
};

struct Comparison {
  std::vector<std::string> jobs;
  ComparedBy by = ComparedBy::kStep;
  std::vector<ComparedLosses> rows;
};

// By step: the steps that were sampled in every job. By tokens: the samples of the first job that
// are within the ranges of all others; the others' losses are interpolated linearly between their
// neighbouring finite samples. NotFound, naming the jobs, if one has no samples or they have
// nothing in common.
absl::StatusOr<Comparison> CompareLosses(const std::vector<LossSeries>& jobs,
                                         ComparedBy by = ComparedBy::kStep);

// The table has at most `rows` evenly spaced rows (0: all), including the last one, and the
// difference of each job from the first, in nats and in percent of the first. JSON and CSV have
// every row. `print`: the value of --output.
Reply ComparisonReply(const Comparison& comparison, int rows, const std::string& print);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_LOSS_COMPARISON_H_
