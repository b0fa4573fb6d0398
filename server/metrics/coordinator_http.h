// The coordinator's plain HTTP:
//   /metrics   for Prometheus; see docs/reference/metrics.md
//   /healthz   200 while the process lives
//   /readyz    200 while it serves and its store is healthy, otherwise 503 and why
//   /sd        scrape targets for Prometheus (http_sd)
//   /api/v2/alerts   takes alerts from Prometheus, as an Alertmanager does, if `alerts` is set
//
// Ownership: borrows controller, store and metrics, which outlive it. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_METRICS_COORDINATOR_HTTP_H_
#define NIBBLE_SERVER_METRICS_COORDINATOR_HTTP_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/metrics/http_exposer.h"
#include "common/metrics/program_table.h"
#include "server/controller/controller.h"
#include "server/controller/coordinator_metrics.h"
#include "server/state/state.h"
#include "server/store/store.h"

namespace nibble {

// The scrape targets in the JSON of Prometheus's http_sd: the coordinator (`self`, host:port) and
// every known daemon that serves metrics. Absent daemons are included, so that Prometheus shows
// them as down.
std::string ScrapeTargets(const State& state, absl::string_view self);

inline constexpr char kCoordinatorHttp[] = "127.0.0.1:7701";
inline constexpr char kAlertsPath[] = "/api/v2/alerts";

class CoordinatorHttp {
 public:
  struct Options {
    std::string listen = kCoordinatorHttp;
    bool insecure = false;      // allow other addresses than loopback
    bool or_free_port = false;  // if the port is taken
    std::string version;
    std::string data_directory;  // of the store, whose disk is measured; empty: none
    // Takes the body of a POST of alerts, which is JSON; called from several threads. Null: 404.
    std::function<absl::Status(const std::string& body)> alerts;
    size_t alert_bytes = 0;   // of a body
    std::string alert_token;  // that a POST of alerts must have; empty: none
    CertificateTimes certificates;
  };

  // Errors as HttpExposer::Start. Not ready until SetServing.
  static absl::StatusOr<std::unique_ptr<CoordinatorHttp>> Start(const Controller& controller,
                                                                const Store& store,
                                                                const CoordinatorMetrics& metrics,
                                                                const Options& options);

  const std::string& address() const { return exposer_->address(); }
  int port() const { return exposer_->port(); }
  void SetServing(bool serving) { serving_ = serving; }

  absl::Status Ready() const;
  std::string Metrics() const;

 private:
  CoordinatorHttp(const Controller& controller, const Store& store,
                  const CoordinatorMetrics& metrics, const Options& options)
      : controller_(controller),
        store_(store),
        metrics_(metrics),
        version_(options.version),
        data_directory_(options.data_directory),
        certificates_(options.certificates) {}

  const Controller& controller_;
  const Store& store_;
  const CoordinatorMetrics& metrics_;
  const std::string version_;
  const std::string data_directory_;
  const CertificateTimes certificates_;
  std::atomic<bool> serving_ = false;
  std::atomic<const HttpExposer*> started_ = nullptr;  // exposer_.get(), once its address is known
  std::unique_ptr<HttpExposer> exposer_;               // last: its threads use the above
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_METRICS_COORDINATOR_HTTP_H_
