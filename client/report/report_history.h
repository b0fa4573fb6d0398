// What happened in a job, by step, as the charts of a report show it: its recipes and its marks.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_REPORT_REPORT_HISTORY_H_
#define NIBBLE_CLIENT_REPORT_REPORT_HISTORY_H_

#include <nlohmann/json_fwd.hpp>

#include "client/report/report_data.h"

namespace nibble {

// [{"number", "first", "title", "lines"}]: the revisions of a job that took effect or will, each
// from its first step. Has at least one.
nlohmann::ordered_json ReportTimeline(const ReportedJob& job);

// [{"step", "kind", "text"}] by step: checkpoints, restarts, and what guards did. Guards that only
// observed are thinned.
nlohmann::ordered_json ReportMarks(const ReportInput& input);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REPORT_REPORT_HISTORY_H_
