// The metrics that every program has, and their values.
//
// Ownership: borrows its arguments during the call. Thread-safety: all functions; they read /proc.
#ifndef NIBBLE_COMMON_METRICS_PROGRAM_TABLE_H_
#define NIBBLE_COMMON_METRICS_PROGRAM_TABLE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/metrics/metric_book.h"
#include "common/metrics/metric_table.h"

namespace nibble {

struct ProgramTable : MetricTable {
  const MetricSpec& build_info = Gauge("nibble_build_info", "", {"program", "version"},
                                       "Program and version, in the labels; always 1");
  const MetricSpec& start = Gauge("nibble_process_start_time_seconds", "seconds", {},
                                  "Start of the process, in seconds since 1970");
  const MetricSpec& cpu = Counter("nibble_process_cpu_seconds_total", "seconds", {},
                                  "Processor time of the process, user and system");
  const MetricSpec& resident =
      Gauge("nibble_process_resident_memory_bytes", "bytes", {}, "Resident memory of the process");
  const MetricSpec& threads =
      Gauge("nibble_process_threads", "threads", {}, "Threads of the process");
  const MetricSpec& files = Gauge("nibble_process_open_fds", "files", {}, "Open file descriptors");
  const MetricSpec& max_files =
      Gauge("nibble_process_max_fds", "files", {}, "Limit on open file descriptors");
  const MetricSpec& disk_free = Gauge(
      "nibble_disk_free_bytes", "bytes", {},
      "Free space of the file system with the program's data, for programs without privileges, and "
      "that of a worker's trash");
  const MetricSpec& disk_size = Gauge("nibble_disk_size_bytes", "bytes", {},
                                      "Size of the file system with the program's data");
  const MetricSpec& certificate_expiry =
      Gauge("nibble_certificate_expiry_timestamp_seconds", "seconds", {"certificate"},
            "When the program's own certificate, or the first of its authorities, expires, in "
            "seconds since 1970; none without TLS");
  const MetricSpec& dropped =
      Counter("nibble_metrics_dropped_total", "values", {},
              "Values dropped because their family already had 4096 series");
};

struct CertificateTime {
  std::string certificate;  // "own", "authority"
  double expires_unix_seconds = 0;
};
// Called for each page; may be null.
using CertificateTimes = std::function<std::vector<CertificateTime>()>;

// What the rows of ProgramTable report on.
struct ProgramInfo {
  absl::string_view program;
  absl::string_view version;
  // The program's data. Without it, or if it cannot be read, the disk's rows have no value.
  absl::string_view data_directory = {};
  // Of the disk, what the program removes when it needs space: counts as free.
  int64_t removable_bytes = 0;
  std::vector<CertificateTime> certificates = {};
};

// Fills in the rows of ProgramTable, and renders the page (MetricPage::Render).
std::string RenderPage(const ProgramTable& table, MetricPage& page, const MetricBook& book,
                       const ProgramInfo& info);

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_PROGRAM_TABLE_H_
