#include "client/report/run_curves.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace nibble {

Points CurveOf(const RunRecord& record, double StepFigures::*figure) {
  Points points;
  for (const auto& [step, figures] : record.steps) {
    points.Add(static_cast<double>(step), figures.*figure);
  }
  return points;
}

Points LossByTokens(const RunRecord& record) {
  Points points;
  for (const auto& [step, figures] : record.steps) {
    if (!std::isfinite(figures.tokens)) continue;
    if (points.size() > 0 && figures.tokens <= points.x.back()) continue;
    points.Add(figures.tokens, figures.loss);
  }
  return points;
}

Points TokensOf(const RunRecord& record) {
  Points tokens;
  for (const auto& [step, figures] : record.steps) {
    if (std::isfinite(figures.tokens)) tokens.Add(static_cast<double>(step), figures.tokens);
  }
  return Corners(tokens);
}

double MedianOf(const RunRecord& record, double StepFigures::*figure) {
  return Median(CurveOf(record, figure).y);
}

std::vector<JobDifference> DifferencesOf(const ReportInput& input) {
  std::vector<JobDifference> differences;
  if (input.compared.empty()) return differences;
  const RunRecord& reference = input.compared[0].record;
  const auto add = [&](const ReportedJob& job) {
    JobDifference difference = {
        job.job.id(),
        RelativeDifference(CurveOf(job.record, &StepFigures::loss),
                           CurveOf(reference, &StepFigures::loss)),
        RelativeDifference(LossByTokens(job.record), LossByTokens(reference))};
    if (difference.by_step.size() > 0 || difference.by_tokens.size() > 0) {
      differences.push_back(std::move(difference));
    }
  };
  add(input.job);
  for (size_t i = 1; i < input.compared.size(); ++i) add(input.compared[i]);
  return differences;
}

}  // namespace nibble
