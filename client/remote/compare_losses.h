// The losses of several jobs side by side, at the steps that all of them have.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_COMPARE_LOSSES_H_
#define NIBBLE_CLIENT_REMOTE_COMPARE_LOSSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/nibble/v1/metrics.pb.h"

namespace nibble {

// More than a coordinator keeps of a job: nothing is thinned, so that common steps stay common.
inline constexpr int kMostComparedSamples = 1 << 20;

struct LossSeries {
  std::string job;
  std::vector<v1::StepSample> samples;  // by step
};

struct ComparedStep {
  int64_t step = 0;
  std::vector<double> losses;  // by job
};

struct Comparison {
  std::vector<std::string> jobs;
  std::vector<ComparedStep> steps;
};

// NotFound where a job has no samples, or no step is common: names which.
absl::StatusOr<Comparison> CompareLosses(const std::vector<LossSeries>& jobs);

// `print` as of --output. The table has `rows` evenly spaced rows at most (0: all), the last step
// among them, and the difference of each job to the first.
absl::StatusOr<std::string> ComparisonText(const Comparison& comparison, const std::string& print,
                                           int rows);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_COMPARE_LOSSES_H_
