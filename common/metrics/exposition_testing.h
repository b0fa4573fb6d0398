// Reads what a program exposes as Prometheus would, and more strictly: for tests.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_METRICS_EXPOSITION_TESTING_H_
#define NIBBLE_COMMON_METRICS_EXPOSITION_TESTING_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/metrics/metric_table.h"

namespace nibble {

struct ExposedFamily {
  std::string type;
  std::string help;
  // By name and labels: `x{a="1",b="2"}`, labels in order of their names.
  std::map<std::string, double> series;
};

class Exposition {
 public:
  // InvalidArgument naming the line: for what the text format has not, series of no family, series
  // or families that come twice, histograms whose buckets do not add up.
  static absl::StatusOr<Exposition> Parse(absl::string_view text);

  const std::map<std::string, ExposedFamily>& families() const { return families_; }
  // Of `series`, as above; NaN where there is none.
  double Value(const std::string& series) const;
  // Of a family, those that are not of a bucket.
  size_t SeriesOf(const std::string& family) const;
  // Rows of the table that are missing, or exposed under another type or help.
  std::vector<std::string> MissingOf(const MetricTable& table) const;

 private:
  std::map<std::string, ExposedFamily> families_;
};

// What Prometheus' own `promtool check metrics` says of it: InvalidArgument with its words.
// NotFound where it is not installed (Debian: prometheus).
absl::Status PromtoolCheck(const std::string& text);

// GET of http://127.0.0.1:port/path: the body, or an error naming the code.
absl::StatusOr<std::string> HttpGet(int port, const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_EXPOSITION_TESTING_H_
