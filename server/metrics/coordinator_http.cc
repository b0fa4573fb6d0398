#include "server/metrics/coordinator_http.h"

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/listen_address.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "server/access/token_file.h"
#include "server/controller/clock.h"
#include "server/controller/log.h"

namespace nibble {

std::string ScrapeTargets(const State& state, absl::string_view self) {
  using Json = nlohmann::json;
  Json targets = Json::array();
  const std::string cluster = state.cluster();
  // A daemon may report any text; Prometheus refuses the whole list for one invalid address.
  const auto add = [&](absl::string_view text, Json labels) {
    const auto address = ParseListenAddress("http_address", text);
    if (!address.ok() || address->port == 0 || address->any) return;
    labels["cluster"] = cluster;
    targets.push_back({{"targets", {address->ToString()}}, {"labels", std::move(labels)}});
  };
  add(self, {{"role", "coordinator"}});
  for (const auto& [name, worker] : state.tables().workers) {
    add(worker->identity().http_address(), {{"role", "worker"}, {"worker", name}});
  }
  return targets.dump(1, ' ', false, Json::error_handler_t::replace);
}

namespace {

// Logs refused alerts, one each second: anybody who reaches the port may have them refused.
// Thread-safety: all methods.
class RefusedAlerts {
 public:
  explicit RefusedAlerts(const Clock& clock) : clock_(clock) {}

  void Add(const absl::Status& why) {
    constexpr int64_t kEveryMs = 1000;
    int64_t left_out = 0;
    {
      MutexLock lock(&mutex_);
      const int64_t now_ms = clock_.SteadyMs();
      if (now_ms < next_ms_) {
        ++left_out_;
        return;
      }
      next_ms_ = now_ms + kEveryMs;
      left_out = std::exchange(left_out_, 0);
    }
    Log(LogLevel::kWarning,
        absl::StrCat("alerts refused: ", why.message(),
                     left_out == 0 ? "" : absl::StrCat("; and ", left_out, " times before")));
  }

 private:
  const Clock& clock_;
  Mutex mutex_;
  int64_t next_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

HttpAnswer AlertAnswer(const absl::Status& taken, RefusedAlerts& refused) {
  if (taken.ok()) return {.type = "application/json", .body = "{\"status\":\"success\"}\n"};
  refused.Add(taken);
  const int code = absl::IsInvalidArgument(taken)   ? 400
                   : absl::IsUnauthenticated(taken) ? 401
                                                    : 503;
  return {.code = code, .body = absl::StrCat(std::string(taken.message()), "\n")};
}

// A browser sends other types to any address for any page that its user visits, but JSON only to
// servers that allow it: without a token this is what keeps such pages from making alerts.
bool IsJson(absl::string_view content_type) {
  const absl::string_view type = content_type.substr(0, content_type.find(';'));
  return absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(type), "application/json");
}

HttpAnswer TakeAlerts(const CoordinatorHttp::Options& options, const HttpPosted& posted,
                      RefusedAlerts& refused) {
  if (!options.alert_token.empty() && !IsBearer(posted.authorization, options.alert_token)) {
    const absl::Status why = absl::UnauthenticatedError(
        absl::StrCat("authorization: ", posted.authorization.empty() ? "missing" : "wrong token",
                     "; allowed: Bearer and the token of --alerts-token-file"));
    return AlertAnswer(why, refused);
  }
  if (IsJson(posted.content_type)) return AlertAnswer(options.alerts(posted.body), refused);
  return {.code = 415, .body = "Content-Type: allowed: application/json\n"};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorHttp>> CoordinatorHttp::Start(
    const Controller& controller, const Store& store, const CoordinatorMetrics& metrics,
    const Options& options) {
  std::unique_ptr<CoordinatorHttp> http(new CoordinatorHttp(controller, store, metrics, options));
  CoordinatorHttp* const self = http.get();
  HttpExposer::Options exposer = {
      .listen = options.listen, .insecure = options.insecure, .or_free_port = options.or_free_port};
  exposer.pages = {
      {"/metrics", [self] { return MetricsAnswer(self->Metrics()); }},
      {"/healthz", [] { return HealthAnswer(absl::OkStatus()); }},
      {"/readyz", [self] { return HealthAnswer(self->Ready()); }},
      {"/sd",
       [self] {
         const HttpExposer* const started = self->started_;
         if (started == nullptr) return HealthAnswer(absl::UnavailableError("it is starting"));
         return HttpAnswer{.type = "application/json",
                           .body = self->controller_.Inspect([&](const State& state) {
                             return ScrapeTargets(state, started->address());
                           })};
       }},
  };
  if (options.alerts != nullptr) {
    exposer.limits.body_bytes = options.alert_bytes;
    const auto refused = std::make_shared<RefusedAlerts>(controller.clock());
    exposer.forms = {{kAlertsPath, [options, refused](const HttpPosted& posted) {
                        return TakeAlerts(options, posted, *refused);
                      }}};
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<HttpExposer> started,
                          HttpExposer::Start(std::move(exposer)));
  http->exposer_ = std::move(started);
  http->started_ = http->exposer_.get();
  return http;
}

absl::Status CoordinatorHttp::Ready() const {
  NIBBLE_RETURN_IF_ERROR(controller_.Health());
  NIBBLE_RETURN_IF_ERROR(store_.Health());
  return serving_ ? absl::OkStatus()
                  : absl::UnavailableError("the coordinator does not accept calls");
}

std::string CoordinatorHttp::Metrics() const {
  const CoordinatorTable& rows = CoordinatorRows();
  MetricPage page(rows);
  metrics_.Fill(page);
  FillStore(store_.Metrics(), page);
  page.Set(rows.store_healthy, {}, store_.Health().ok() ? 1 : 0);
  const StoreInfo info = store_.Info();
  page.Set(rows.journal_last, {}, static_cast<double>(info.last_sequence));
  page.Set(rows.journal_first, {}, static_cast<double>(info.first_sequence));
  const Controller::Connected connected = controller_.CountConnected();
  page.Set(rows.streams, {}, static_cast<double>(connected.workers));
  page.Set(rows.watches, {}, static_cast<double>(connected.watches));
  page.Set(rows.waits, {}, static_cast<double>(connected.waits));
  page.Set(rows.posts_waiting, {}, static_cast<double>(controller_.Inspect([](const State& state) {
             return state.index().unsettled().size();
           })));
  return RenderPage(
      rows, page, metrics_.book(),
      {.program = "nibble-coordinator",
       .version = version_,
       .data_directory = data_directory_,
       .certificates = certificates_ ? certificates_() : std::vector<CertificateTime>()});
}

}  // namespace nibble
