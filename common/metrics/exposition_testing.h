// A parser of Prometheus's text format, stricter than Prometheus itself: for tests.
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
  // InvalidArgument, naming the line: invalid syntax, a series without a family, a duplicate series
  // or family, or a histogram whose buckets do not add up.
  static absl::StatusOr<Exposition> Parse(absl::string_view text);

  const std::map<std::string, ExposedFamily>& families() const { return families_; }
  // `series`: as in ExposedFamily; NaN if it does not exist.
  double Value(const std::string& series) const;
  // The number of series of a family, without those of buckets.
  size_t SeriesOf(const std::string& family) const;
  // Names of the table's rows that are missing, or exposed with another type or help.
  std::vector<std::string> MissingOf(const MetricTable& table) const;

 private:
  std::map<std::string, ExposedFamily> families_;
};

// Runs Prometheus's `promtool check metrics`. InvalidArgument with its output if it finds a fault;
// NotFound if it is not installed (Debian package: prometheus).
absl::Status PromtoolCheck(const std::string& text);

// The body of a GET of http://127.0.0.1:port/path. Internal, naming the code, unless that is 200.
absl::StatusOr<std::string> HttpGet(int port, const std::string& path);

}  // namespace nibble

#endif  // NIBBLE_COMMON_METRICS_EXPOSITION_TESTING_H_
