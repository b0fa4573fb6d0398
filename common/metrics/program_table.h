// The rows that every program has, and their values.
//
// Ownership: the page borrows nothing beyond the call. Thread-safety: pure functions of /proc.
#ifndef NIBBLE_COMMON_METRICS_PROGRAM_TABLE_H_
#define NIBBLE_COMMON_METRICS_PROGRAM_TABLE_H_

#include "absl/strings/string_view.h"
#include "common/metrics/metric_book.h"
#include "common/metrics/metric_table.h"

namespace nibble {

struct ProgramTable : MetricTable {
  const MetricSpec& build_info =
      Gauge("nibble_build_info", "", {"program", "version"}, "1; what is running");
  const MetricSpec& start = Gauge("nibble_process_start_time_seconds", "seconds", {},
                                  "when the process began, since 1970");
  const MetricSpec& cpu =
      Counter("nibble_process_cpu_seconds_total", "seconds", {}, "processor time, user and system");
  const MetricSpec& resident =
      Gauge("nibble_process_resident_memory_bytes", "bytes", {}, "memory that is in use");
  const MetricSpec& threads = Gauge("nibble_process_threads", "threads", {}, "that run or wait");
  const MetricSpec& files = Gauge("nibble_process_open_fds", "files", {}, "open now");
  const MetricSpec& most_files =
      Gauge("nibble_process_max_fds", "files", {}, "that may be open at once");
  const MetricSpec& dropped =
      Counter("nibble_metrics_dropped_total", "values", {},
              "for which a family had no room: a family has 4096 series at most");
};

// The page's text, with the rows of ProgramTable filled in.
std::string RenderPage(const ProgramTable& table, MetricPage& page, const MetricBook& book,
                       absl::string_view program, absl::string_view version);

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_PROGRAM_TABLE_H_
