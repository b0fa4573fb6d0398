// nibble-coordinator: the coordinator of one cluster.
//
// Exits with 0 after SIGTERM or SIGINT, 1 if it cannot start or its store fails, and 2 if the
// command line is wrong. If the store's directory is removed while it runs, it does not exit: it
// answers reads, refuses changes, and is not ready.
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/connections/connection_gate.h"
#include "common/files/files.h"
#include "common/identity/credentials.h"
#include "common/identity/expiry.h"
#include "common/process/standard_descriptors.h"
#include "common/service/service_manager.h"
#include "common/status_macros.h"
#include "common/version/build_version.h"
#include "server/access/audit_log.h"
#include "server/access/authenticator.h"
#include "server/access/token_file.h"
#include "server/backup/backup_command.h"
#include "server/backup/backup_runner.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/controller/log.h"
#include "server/coordinator_flags.h"
#include "server/metrics/coordinator_http.h"
#include "server/notify/alert_intake.h"
#include "server/notify/allow_list.h"
#include "server/notify/notifier.h"
#include "server/service/coordinator_server.h"
#include "server/store/backups.h"
#include "server/store/rocks_store.h"

namespace nibble {
namespace {

std::string NewId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(uint32_t{random()}, absl::kZeroPad8));
  return id;
}

// Running without systemd is no error. Failing to reach it is logged, and stops nothing.
void LogUnreported(const absl::Status& reported) {
  if (!reported.ok()) Log(LogLevel::kWarning, reported.message());
}

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Null if HTTP is turned off.
absl::StatusOr<std::unique_ptr<CoordinatorHttp>> ServeHttp(
    const Controller& controller, const Store& store, const CoordinatorFlags& flags,
    const std::shared_ptr<const Credentials>& credentials, AlertIntake& intake) {
  if (flags.accept_alerts && flags.http.empty()) {
    return absl::FailedPreconditionError("--accept-alerts: --http '' turns HTTP off");
  }
  if (flags.accept_alerts && flags.Authenticates() && flags.alerts_token_file.empty()) {
    return absl::FailedPreconditionError(
        "--accept-alerts: callers are authenticated, and Prometheus must be, too; give "
        "--alerts-token-file");
  }
  std::string alert_token;
  if (!flags.alerts_token_file.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(alert_token,
                            ReadOrMakeToken("--alerts-token-file", flags.alerts_token_file));
  }
  std::function<absl::Status(const std::string&)> alerts;
  if (flags.accept_alerts) {
    alerts = [&intake](const std::string& body) { return intake.Take(body); };
  }
  if (flags.http.empty()) {
    Log(LogLevel::kInfo, "HTTP is turned off: metrics and probes are not served");
    return nullptr;
  }
  auto http = CoordinatorHttp::Start(controller, store, controller.metrics(),
                                     {.listen = flags.http,
                                      .insecure = flags.server.insecure || flags.tls.given(),
                                      .or_free_port = !flags.http_given,
                                      .version = BuildVersion(),
                                      .data_directory = flags.store,
                                      .alerts = std::move(alerts),
                                      .alert_bytes = kMaxAlertBodyBytes,
                                      .alert_token = std::move(alert_token),
                                      .certificates = CertificateTimesOf(credentials)});
  if (!http.ok()) return http.status();
  const std::string& address = (*http)->address();
  if (!flags.http_given && address != flags.http) {
    Log(LogLevel::kWarning,
        absl::StrCat("port of ", flags.http, " is taken; HTTP uses a free one"));
  }
  Log(LogLevel::kInfo, absl::StrCat("metrics at http://", address));
  return http;
}

// The parts that decide who may call. The server borrows them.
struct Security {
  std::shared_ptr<const Credentials> credentials;
  std::unique_ptr<Authenticator> authenticator;  // null: callers are not authenticated
  std::unique_ptr<AuditLog> audit;               // null: none
};

// `lost`: a line of the audit log was lost.
absl::StatusOr<Security> OpenSecurity(const CoordinatorFlags& flags, std::function<void()> lost) {
  Security security;
  NIBBLE_ASSIGN_OR_RETURN(security.credentials, Credentials::Make(flags.tls));
  const PeerName& own = security.credentials->own_name();
  if (security.credentials->secure() && own.kind != PeerKind::kCoordinator) {
    return absl::FailedPreconditionError(
        absl::StrCat("--tls-cert: it names ", own.ToString(), "; allowed: nibble://coordinator"));
  }
  if (flags.Authenticates()) {
    Authenticator::Options options = flags.access;
    options.token_file = flags.store + "/TOKENS";
    NIBBLE_ASSIGN_OR_RETURN(security.authenticator, Authenticator::Open(options));
  }
  if (!flags.audit.path.empty()) {
    AuditLog::Options options = flags.audit;
    options.file_bytes = flags.audit_mib << 20;
    options.failed = [lost = std::move(lost)](const absl::Status& why) {
      lost();
      Log(LogLevel::kError, absl::StrCat("audit log: a line was lost: ", why.message()));
    };
    NIBBLE_ASSIGN_OR_RETURN(security.audit, AuditLog::Open(std::move(options)));
  }
  return security;
}

void LogSecurity(const CoordinatorFlags& flags, const Security& security) {
  const bool tls = security.credentials->secure();
  if (security.authenticator == nullptr) {
    if (flags.server.insecure) {
      Log(LogLevel::kWarning, "callers are not authenticated (--insecure)");
    }
    return;
  }
  Log(LogLevel::kInfo, absl::StrCat("callers need ", tls ? "certificates and tokens" : "tokens"));
  if (!tls) Log(LogLevel::kWarning, "connections are not encrypted: tokens can be read on the way");
}

// Null if there are no backups.
std::unique_ptr<BackupRunner> StartBackups(const RocksStore& store, const Clock& clock,
                                           CoordinatorMetrics& metrics,
                                           const CoordinatorFlags& flags) {
  if (flags.backup_directory.empty()) return nullptr;
  return std::make_unique<BackupRunner>(
      clock, metrics,
      BackupRunner::Options{.directory = flags.backup_directory,
                            .every_ms = static_cast<int64_t>(flags.backup_every_minutes * 60'000),
                            .make = [&store, &flags] {
                              return store.AddBackup(flags.backup_directory, flags.backup_keep);
                            }});
}

// Every connection costs two descriptors; the store and HTTP need some, too.
void WarnOfDescriptors(const ConnectionLimits& limits) {
  constexpr size_t kOthers = 2000;
  const size_t most = RaiseDescriptorLimit();
  if (most / 2 >= limits.all + kOthers / 2) return;
  Log(LogLevel::kWarning,
      absl::StrCat("this process may open ", most, " descriptors, too few for ", limits.all,
                   " connections (--max-connections), which need ", 2 * limits.all + kOthers));
}

// The store; null if a signal to stop came while a standby waited for it. `seconds`: of the last
// attempt.
absl::StatusOr<std::unique_ptr<RocksStore>> OpenStore(const CoordinatorFlags& flags,
                                                      ServiceManager& manager, double& seconds) {
  RocksStoreOptions options;
  options.cluster = flags.controller.cluster;
  // Where its volume is not mounted, a standby would begin an empty store.
  options.create_if_missing = !flags.standby;
  options.keeps_reserve = true;
  const sigset_t signals = StopSignals();
  constexpr timespec kPause = {.tv_sec = 0, .tv_nsec = 100'000'000};
  for (bool waits = false;; waits = true) {
    const Stopwatch opening;
    absl::StatusOr<std::unique_ptr<RocksStore>> store = RocksStore::Open(flags.store, options);
    seconds = opening.seconds();
    // The lock is taken.
    if (!flags.standby || !absl::IsUnavailable(store.status())) return store;
    if (!waits) {
      Log(LogLevel::kInfo, absl::StrCat("standby: ", store.status().message()));
      LogUnreported(manager.Ready("standby"));
    }
    LogUnreported(manager.Alive(ServiceManager::Clock::now()));
    if (sigtimedwait(&signals, nullptr, &kPause) >= 0) return nullptr;
  }
}

absl::Status Serve(const CoordinatorFlags& flags, ServiceManager& manager) {
  NIBBLE_RETURN_IF_ERROR(
      CheckListen(flags.server.listen, flags.server.insecure, flags.tls.given()));
  NIBBLE_ASSIGN_OR_RETURN(const AllowList allow, AllowList::Parse(flags.notify_allow));
  Notifier::Options notify = {.allow = allow};
  if (!flags.notify_secret_file.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(notify.secret, ReadSecret(flags.notify_secret_file));
  }
  double opened_seconds = 0;
  NIBBLE_ASSIGN_OR_RETURN(const auto store, OpenStore(flags, manager, opened_seconds));
  if (store == nullptr) {
    Log(LogLevel::kInfo, "stopping: received a signal before the store was free");
    return absl::OkStatus();
  }
  if (const uint64_t bytes = store->MissingReserve(); bytes > 0) {
    Log(LogLevel::kWarning,
        absl::StrCat(flags.store, " has no reserve of ", bytes,
                     " bytes, since less than twice as many are free: if the disk is full, the "
                     "store cannot be opened again until there is room"));
  }
  const SystemClock clock;
  std::atomic<bool> failed = false;
  ControllerOptions options = flags.controller;
  const bool restored = IsRestored(flags.store);
  options.restored = options.restored || restored;
  options.fresh_id = NewId;
  options.may_post = [&allow](const std::string& url) { return allow.MayPost(url); };
  // If the store's directory is gone (NotFound), keep running: after a restart the coordinator
  // would create an empty store in its place.
  const auto store_failed = [&failed](const absl::Status& why) {
    if (!absl::IsNotFound(why)) failed = true;
  };
  NIBBLE_ASSIGN_OR_RETURN(auto controller, Controller::Start(*store, clock, options, store_failed));
  if (restored) NIBBLE_RETURN_IF_ERROR(ClearRestored(flags.store));  // the new epoch is durable
  controller->metrics().Recovered("store", opened_seconds);
  AlertIntake intake(*controller);
  NIBBLE_ASSIGN_OR_RETURN(
      const Security security,
      OpenSecurity(flags, [&metrics = controller->metrics()] { metrics.AuditLost(); }));
  NIBBLE_ASSIGN_OR_RETURN(auto http,
                          ServeHttp(*controller, *store, flags, security.credentials, intake));
  ServerOptions server_options = flags.server;
  server_options.credentials = security.credentials;
  server_options.authenticator = security.authenticator.get();
  server_options.audit = security.audit.get();
  server_options.service.logs.stall_ms = flags.controller.watches.stall_ms;
  if (http != nullptr) server_options.http = http->address();
  WarnOfDescriptors(server_options.connections);
  // Before it listens: who has reached it finds it with `backup now`, too.
  const auto backups = StartBackups(*store, clock, controller->metrics(), flags);
  NIBBLE_ASSIGN_OR_RETURN(const auto server, CoordinatorServer::Start(*controller, server_options));
  Notifier notifier(*controller, std::move(notify));
  LogSecurity(flags, security);
  Log(LogLevel::kInfo,
      absl::StrCat("cluster ", flags.controller.cluster, " on port ", server->port(), ", ",
                   store->Info().last_sequence, " updates so far"));
  if (http != nullptr) http->SetServing(true);
  LogUnreported(manager.Ready(absl::StrCat("cluster ", flags.controller.cluster)));
  ExpiryWarnings expiry_warnings(security.credentials,
                                 [](const std::string& line) { Log(LogLevel::kWarning, line); });
  const sigset_t signals = StopSignals();
  const timespec pause = {static_cast<time_t>(flags.tick_ms / 1000),
                          static_cast<long>(flags.tick_ms % 1000 * 1'000'000)};
  bool healthy = true;
  int64_t ticked_ms = clock.SteadyMs();
  while (!failed && sigtimedwait(&signals, nullptr, &pause) < 0) {
    const int64_t now_ms = clock.SteadyMs();
    controller->NotePause(now_ms - ticked_ms - flags.tick_ms);
    ticked_ms = now_ms;
    LogUnreported(manager.Alive(ServiceManager::Clock::now()));
    controller->Tick();
    if (flags.accept_alerts) intake.Tick();
    notifier.Tick();
    if (backups != nullptr) backups->Tick();
    expiry_warnings.Tick(clock.NowUnixMs() / 1000);
    if (!healthy || controller->Health().ok()) continue;
    healthy = false;
    server->SetServing(false);
  }
  server->SetServing(false);
  if (http != nullptr) http->SetServing(false);
  LogUnreported(manager.Stopping());
  Log(LogLevel::kInfo, failed ? "stopping: the store has failed" : "stopping: received a signal");
  controller->StopWaiting();
  server->Shutdown(flags.grace_ms);
  return controller->Health();
}

int Main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "backup") return RunBackupCommand(argc - 1, argv + 1);
  CoordinatorFlags flags;
  if (const std::optional<int> ended = ParseCoordinatorFlags(argc, argv, flags)) return *ended;
  absl::StatusOr<ServiceManager> manager = ServiceManager::FromEnvironment();
  if (!manager.ok()) {
    Log(LogLevel::kError, manager.status().message());
    return 1;
  }
  // Block the signals before any thread starts, so that all inherit it and Serve receives them.
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const absl::Status status = Serve(flags, *manager);
  if (status.ok()) return 0;
  Log(LogLevel::kError, status.ToString());
  return 1;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) {
  nibble::ReserveStandardDescriptors();
  nibble::CloseNewFilesToOthers();
  return nibble::Main(argc, argv);
}
