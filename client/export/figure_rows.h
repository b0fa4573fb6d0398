// Figures of a run as rows: CSV (RFC 4180, with line feeds), or JSON objects. The columns are the
// fields that the events declare (worker/trainer/report), preceded by the time.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_EXPORT_FIGURE_ROWS_H_
#define NIBBLE_CLIENT_EXPORT_FIGURE_ROWS_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "worker/trainer/report/run_event.h"

namespace nibble {

// "time", then the fields of the event: "step", "validation" or "precision".
std::vector<std::string> FigureColumns(std::string_view event);

// One line each, with its line feed. A field that the event lacks, because an older trainer wrote
// it, is empty; NaN and infinities are nan, inf and -inf.
std::string CsvHead(const std::vector<std::string>& columns);
std::string CsvRow(const RunEvent& event, const std::vector<std::string>& columns);

// The columns that the event has, in their order, as in the event log.
nlohmann::ordered_json RowObject(const RunEvent& event, const std::vector<std::string>& columns);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_EXPORT_FIGURE_ROWS_H_
