// A daemon's plain HTTP:
//   /metrics   for Prometheus; see docs/reference/metrics.md
//   /healthz   200 while the process lives
//   /readyz    200 while the coordinator counts on it, otherwise 503 and why
//
// Thread-safety: pure function.
#ifndef NIBBLE_WORKER_METRICS_WORKER_HTTP_H_
#define NIBBLE_WORKER_METRICS_WORKER_HTTP_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/http_exposer.h"
#include "worker/metrics/worker_metrics.h"

namespace nibble {

inline constexpr char kWorkerHttp[] = "127.0.0.1:7702";

struct WorkerHttpOptions {
  std::string listen;         // host:port; port 0: a free one; empty: no HTTP
  bool insecure = false;      // off loopback, too
  bool or_free_port = false;  // where the port is taken
};

// Null where `listen` is empty. Errors as HttpExposer::Start. Borrows the metrics.
absl::StatusOr<std::unique_ptr<HttpExposer>> ServeWorkerHttp(const WorkerMetrics& metrics,
                                                             const WorkerHttpOptions& options);

// What others are told of an exposer's address: where that is of every interface, the host at which
// they reach the daemon, host:port `reached_at`; nothing where it is of loopback and they are not.
std::string AdvertisedHttp(const HttpExposer& exposer, const std::string& reached_at);

}  // namespace nibble

#endif  // NIBBLE_WORKER_METRICS_WORKER_HTTP_H_
