// The curves of a run, and how those of compared jobs differ.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_RUN_CURVES_H_
#define NIBBLE_CLIENT_REPORT_RUN_CURVES_H_

#include <string>
#include <vector>

#include "client/report/report_data.h"
#include "client/report/run_events.h"
#include "client/report/series.h"

namespace nibble {

// A figure by step.
Points CurveOf(const RunRecord& record, double StepFigures::*figure);
Points LossByTokens(const RunRecord& record);
// Tokens by step, without the points on a straight line.
Points TokensOf(const RunRecord& record);

double MedianOf(const RunRecord& record, double StepFigures::*figure);

// The loss of a job relative to that of the reference, percent.
struct JobDifference {
  std::string job;
  Points by_step, by_tokens;
};
// Of all jobs but the reference that have steps or tokens in common with it.
std::vector<JobDifference> DifferencesOf(const ReportInput& input);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_RUN_CURVES_H_
