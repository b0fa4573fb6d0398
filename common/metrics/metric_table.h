// What a program measures: a table with a row for each family of metrics. A row is declared once,
// as a member of a struct that inherits MetricTable; values are given through the member, and
// docs/reference/metrics.md is made from the rows.
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
  std::string unit;  // as people write it; empty: it has none
  std::vector<std::string> labels;
  std::string help;            // one line
  std::vector<double> bounds;  // of a histogram's buckets, ascending
  size_t index = 0;            // in its table
};

class MetricTable {
 public:
  // Series of one family at most; what comes on top is dropped and counted.
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

// From 100 µs to 10 s: what a service does. From 10 ms to 3 h: what people wait for.
std::vector<double> ServiceSeconds();
std::vector<double> WaitingSeconds();

// InvalidArgument naming the first row that breaks a rule of names: the prefix nibble_, lower case,
// _total of counters and of nothing else, base units at the end (_seconds, _bytes, _ratio), a help
// of one line, no label or name twice.
absl::Status CheckMetricTable(const MetricTable& table);

// The rows as a table in Markdown.
std::string MetricTableMarkdown(const MetricTable& table);

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_METRIC_TABLE_H_
