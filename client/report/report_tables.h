// The tables and lists of a report: revisions, attempts, checkpoints, events, environment.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_REPORT_TABLES_H_
#define NIBBLE_CLIENT_REPORT_REPORT_TABLES_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "client/report/precision_map.h"
#include "client/report/report_data.h"
#include "client/report/series.h"

namespace nibble {

// "JOB_STATE_RUNNING" without its type, in lower case: "running". `name`: of the value.
std::string PlainWord(const std::string& name, const std::string& type);

// Each {"title", "head": [{"text", "kind"}], "rows": [[text]], "open"}; "kind" is how the page
// sets the column: "number", "tight", "wide" or "".
nlohmann::ordered_json ReportTables(const ReportInput& input);
nlohmann::ordered_json WorstTable(const PrecisionMap& map);

// A row of the table of the compared jobs. NaN: not known.
struct JobSummary {
  std::string job, model, recipe;
  int64_t steps = 0;
  double tokens = StepFigures::kUnknown;
  double loss = StepFigures::kUnknown;  // mean of the last samples
  double validation = StepFigures::kUnknown;
  MeanWithError difference;  // of the loss, relative to the reference, percent
  double tokens_per_second = StepFigures::kUnknown;
};
nlohmann::ordered_json ComparedTable(const std::vector<JobSummary>& jobs);

// [[name, value]]
nlohmann::ordered_json EnvironmentList(const ReportInput& input);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_REPORT_TABLES_H_
