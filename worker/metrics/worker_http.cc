#include "worker/metrics/worker_http.h"

#include "common/metrics/listen_address.h"

namespace nibble {

absl::StatusOr<std::unique_ptr<HttpExposer>> ServeWorkerHttp(const WorkerMetrics& metrics,
                                                             const WorkerHttpOptions& options) {
  if (options.listen.empty()) return nullptr;
  HttpExposer::Options exposer = {
      .listen = options.listen, .insecure = options.insecure, .or_free_port = options.or_free_port};
  exposer.pages = {
      {"/metrics", [&metrics] { return MetricsAnswer(metrics.Page()); }},
      {"/healthz", [] { return HealthAnswer(absl::OkStatus()); }},
      {"/readyz", [&metrics] { return HealthAnswer(metrics.Ready()); }},
  };
  return HttpExposer::Start(std::move(exposer));
}

std::string AdvertisedHttp(const HttpExposer& exposer, const std::string& reached_at) {
  absl::StatusOr<ListenAddress> own = ParseListenAddress("http", exposer.address());
  const absl::StatusOr<ListenAddress> reached = ParseListenAddress("address", reached_at);
  if (!own.ok() || !reached.ok()) return exposer.address();
  if (own->loopback && !reached->loopback) return "";
  if (!own->any) return exposer.address();
  own->host = reached->host;
  return own->ToString();
}

}  // namespace nibble
