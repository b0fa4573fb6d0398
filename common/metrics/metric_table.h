// The metrics of a program: a table with a row for each family. A row is declared once, as a member
// of a struct that inherits MetricTable; values are recorded through the member, and
// docs/reference/metrics.md is generated from the rows.
//
//   struct OvenTable : MetricTable {
//     const MetricSpec& loaves = Counter("nibble_loaves_total", "loaves", {"kind"}, "baked");
//   };
//
// Ownership: a table owns its rows; references to them live as long as it does. Thread-safety:
// const methods from any thread.
#ifndef NIBBLE_COMMON_METRICS_METRIC_TABLE_H_
#define NIBBLE_COMMON_METRICS_METRIC_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace nibble {

enum class MetricKind : uint8_t { kCounter, kGauge, kHistogram };

struct MetricSpec {
  MetricKind kind = MetricKind::kGauge;
  std::string name;
  std::string unit;  // for people; empty: none
  std::vector<std::string> labels;
  std::string help;            // one line
  std::vector<double> bounds;  // of a histogram's buckets, ascending
  size_t index = 0;            // of the row in its table
};

class MetricTable {
 public:
  // The most series of one family; values for further ones are dropped and counted.
  static constexpr size_t kMaxSeries = 4096;

  MetricTable() = default;
  MetricTable(const MetricTable&) = delete;
  MetricTable& operator=(const MetricTable&) = delete;

  const std::deque<MetricSpec>& rows() const { return rows_; }

 protected:
  const MetricSpec& Counter(std::string name, std::string unit, std::vector<std::string> labels,
                            std::string help);
  const MetricSpec& Gauge(std::string name, std::string unit, std::vector<std::string> labels,
                          std::string help);
  const MetricSpec& Histogram(std::string name, std::string unit, std::vector<std::string> labels,
                              std::string help, std::vector<double> bounds);

 private:
  std::deque<MetricSpec> rows_;
};

// Bucket bounds for durations of a service's operations (100 µs to 10 s) and for waiting times of
// people and jobs (10 ms to 3 h).
std::vector<double> ServiceSeconds();
std::vector<double> WaitingSeconds();

// InvalidArgument, naming the first row that breaks a rule: names are lower case and begin with
// nibble_; counters, and only they, end in _total; base units end the name (_seconds, _bytes,
// _ratio); the help is one line; labels and names are unique.
absl::Status CheckMetricTable(const MetricTable& table);

// The rows as a Markdown table.
std::string MetricTableMarkdown(const MetricTable& table);

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_METRIC_TABLE_H_
