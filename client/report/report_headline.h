// The headline of a report: its most important facts, each a label with a value and a note.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_REPORT_HEADLINE_H_
#define NIBBLE_CLIENT_REPORT_REPORT_HEADLINE_H_

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "client/report/precision_map.h"
#include "client/report/report_data.h"
#include "client/report/run_curves.h"

namespace nibble {

// [{"label", "value", "note", "tone"}]; "tone" is "good", "bad" or "".
nlohmann::ordered_json ReportHeadline(const ReportInput& input,
                                      const std::vector<JobDifference>& differences,
                                      const PrecisionMap& precision);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_REPORT_HEADLINE_H_
