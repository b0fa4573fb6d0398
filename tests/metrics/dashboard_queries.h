// For tests: every query of the dashboards in deploy/grafana/dashboards, as Grafana would send it.
//
// Ownership: values. Thread-safety: depends only on the disk.
#ifndef NIBBLE_TESTS_METRICS_DASHBOARD_QUERIES_H_
#define NIBBLE_TESTS_METRICS_DASHBOARD_QUERIES_H_

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace nibble {

struct DashboardQuery {
  std::string place;  // "job.json: Loss: $reference (reference)"
  std::string expression;

  // Whether it has data only in a cluster with TLS: certificate_alert_test.cc runs these.
  bool NeedsTls() const { return expression.find("nibble_certificate_") != std::string::npos; }
};

// Of panels, annotations and variables, with `values` in place of the variables. A label_values of
// a variable becomes an expression with a series for each value.
std::vector<DashboardQuery> ReadDashboardQueries(const std::filesystem::path& directory,
                                                 const std::map<std::string, std::string>& values);

}  // namespace nibble

#endif  // NIBBLE_TESTS_METRICS_DASHBOARD_QUERIES_H_
