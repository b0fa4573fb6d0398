// For tests: Debian's Prometheus with the configuration and rules of deploy/prometheus, scraping a
// coordinator's list of targets every second, and its HTTP API.
//
// Ownership: owns the process and its files below the directory. Thread-safety: none.
#ifndef NIBBLE_TESTS_METRICS_PROMETHEUS_PROCESS_H_
#define NIBBLE_TESTS_METRICS_PROMETHEUS_PROCESS_H_

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/process/process.h"

namespace nibble {

// OK if the expression now has a sample that is a number or an infinity; NotFound if it has none,
// or only NaN; InvalidArgument if it cannot be evaluated. `address`: host:port of a Prometheus.
absl::Status PrometheusHasData(const std::string& address, const std::string& expression);
// The rules by name, as /api/v1/rules shows them; empty if it does not answer.
std::map<std::string, nlohmann::json> PrometheusRules(const std::string& address);

class PrometheusProcess {
 public:
  // `deploy`: the directory deploy/prometheus. `targets`: host:port of the coordinator's HTTP.
  // In the copy of the rules that runs here, minutes are seconds. NotFound if Prometheus is not
  // installed; otherwise returns once it answers.
  static absl::StatusOr<PrometheusProcess> Start(const std::string& deploy,
                                                 const std::string& targets,
                                                 const std::string& directory);
  PrometheusProcess(PrometheusProcess&& other) noexcept
      : directory_(std::move(other.directory_)),
        address_(std::move(other.address_)),
        process_(std::exchange(other.process_, {})) {}
  ~PrometheusProcess();

  absl::Status HasData(const std::string& expression) const {
    return PrometheusHasData(address_, expression);
  }
  std::map<std::string, nlohmann::json> Rules() const { return PrometheusRules(address_); }
  std::string Log() const;

 private:
  PrometheusProcess(std::string directory, std::string address, const ProcessIdentity& process)
      : directory_(std::move(directory)), address_(std::move(address)), process_(process) {}

  std::string directory_;
  std::string address_;
  ProcessIdentity process_;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_METRICS_PROMETHEUS_PROCESS_H_
