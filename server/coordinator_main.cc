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
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/command_line/command_line.h"
#include "common/connections/connection_gate.h"
#include "common/identity/credentials.h"
#include "common/identity/expiry.h"
#include "common/process/standard_descriptors.h"
#include "common/s3/object_store.h"
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
#include "server/metrics/coordinator_http.h"
#include "server/notify/alert_intake.h"
#include "server/notify/allow_list.h"
#include "server/notify/notifier.h"
#include "server/service/coordinator_server.h"
#include "server/state/limits.h"
#include "server/store/backups.h"
#include "server/store/rocks_store.h"
#include "settings/settings_file.h"

namespace nibble {
namespace {

struct Flags {
  std::string store;
  ControllerOptions controller;
  ServerOptions server;
  std::string http = kCoordinatorHttp;
  bool http_given = false;
  std::vector<std::string> notify_allow;
  std::string notify_secret_file;
  bool accept_alerts = false;
  std::string alerts_token_file;
  TlsFiles tls;
  Authenticator::Options access;
  AuditLog::Options audit;
  int64_t audit_mib = 64;
  std::string backup_directory;  // empty: no backups
  double backup_every_minutes = 60;
  int32_t backup_keep = 48;
  int64_t tick_ms = 100;
  int64_t grace_ms = 5000;
};

void AddFlags(Command app, Flags& flags) {
  app.Add("--store", flags.store, "directory of the durable state; created if missing").Required();
  app.Add("--cluster", flags.controller.cluster,
          "name of the cluster; another cluster's store is refused")
      .Required();
  app.AddFlag("--restored", flags.controller.restored,
              "the store was restored from a backup: begin a new epoch, in which newer jobs and "
              "checkpoints are adopted from the workers");
  app.AddCall(
         "--orphan-grace",
         [&flags](double hours) {
           flags.controller.orphan_grace_ms = static_cast<int64_t>(hours * 3'600'000);
         },
         "hours that workers keep orphans, data of jobs that the store does not know, at least")
      .InRange(0.0, 8760.0)
      .ShowDefault("6");
  app.Add("--listen", flags.server.listen, "host:port to listen on; port 0 is a free port")
      .ShowDefault();
  app.Add("--http", flags.http,
          "host:port of plain HTTP for metrics and probes, off loopback with TLS or --insecure; "
          "port 0, "
          "and the default port when it is "
          "taken, is a free port; '' turns it off")
      .ShowDefault();
  app.AddFlag("--insecure", flags.server.insecure,
              "allow listening off loopback without TLS and authentication");
  app.Add("--lease-ms", flags.controller.lease_ms,
          "a worker without a report for this long is lost")
      .InRange(int64_t{100}, int64_t{3'600'000})
      .ShowDefault();
  app.Add("--copies", flags.controller.copies,
          "workers that store each shard of a newest checkpoint")
      .InRange(1, 16)
      .ShowDefault();
  app.Add("--preemption-grace-ms", flags.controller.policy.grace_ms,
          "time that a preempted job has for its checkpoint")
      .InRange(int64_t{0}, int64_t{86'400'000})
      .ShowDefault();
  app.Add("--grow-interval-ms", flags.controller.policy.grow_interval_ms,
          "time after its launch before an elastic job grows")
      .InRange(int64_t{0}, int64_t{86'400'000})
      .ShowDefault();
  app.Add("--hang-factor", flags.controller.hang_factor,
          "a rank hangs after this multiple of its median step time without a step")
      .InRange(2.0, 1e6)
      .ShowDefault();
  app.Add("--switch-wait-ms", flags.controller.switch_wait_ms,
          "time that the answer to a change of a recipe waits for ranks to switch, to return the "
          "step at which they do; 0: not at all")
      .InRange(int64_t{0}, int64_t{30'000})
      .ShowDefault();
  app.Add("--tick-ms", flags.tick_ms, "interval of scheduling and of checking leases and deadlines")
      .InRange(int64_t{1}, int64_t{10'000})
      .ShowDefault();
  app.Add("--grace-ms", flags.grace_ms, "time that calls in progress have after SIGTERM")
      .InRange(int64_t{0}, int64_t{600'000})
      .ShowDefault();
}

void AddNotifyFlags(Command app, Flags& flags) {
  app.Add("--notify-allow", flags.notify_allow,
          "HOST[:PORT][=ADDRESS[/BITS]] to which events of jobs may be posted; may be repeated; "
          "none: no posts (docs/guide/notifications.md)")
      .OneValueEach()
      .Check([](const std::string& pattern) {
        return std::string(AllowList::Parse({pattern}).status().message());
      })
      .Group("Notifications");
  app.Add("--notify-secret-file", flags.notify_secret_file,
          "file with the secret that signs posted events (HMAC-SHA256)")
      .Group("Notifications");
  const Option accepts =
      app.AddFlag("--accept-alerts", flags.accept_alerts,
                  "take alerts of Prometheus about jobs at /api/v2/alerts of --http; they become "
                  "events of the jobs, which `notify` posts")
          .Group("Notifications");
  app.Add("--alerts-token-file", flags.alerts_token_file,
          "file with the token that Prometheus sends with alerts, made if it does not exist; "
          "required where callers are authenticated")
      .Needs(accepts)
      .Group("Notifications");
}

// docs/guide/security.md
void AddSecurityFlags(Command app, Flags& flags) {
  const std::string group = "Security";
  app.Add("--tls-cert", flags.tls.certificate,
          "PEM file of the certificate of nibble://coordinator; with it callers need certificates")
      .Group(group);
  app.Add("--tls-key", flags.tls.key, "PEM file of its private key").Group(group);
  app.Add("--tls-ca", flags.tls.authority,
          "PEM file of the authorities that sign the certificates of callers and workers")
      .Group(group);
  app.Add("--bootstrap-token-file", flags.access.bootstrap_file,
          "file with the token of the first operator, made if it does not exist; with it callers "
          "need tokens")
      .Group(group);
  app.Add("--jwks-file", flags.access.jwks_file,
          "JWKS file with the keys of an identity provider, whose JWTs are accepted as tokens")
      .Group(group);
  app.Add("--jwt-issuer", flags.access.jwt.issuer, "`iss` that a JWT must have; default: any")
      .Group(group);
  app.Add("--jwt-audience", flags.access.jwt.audience, "`aud` that a JWT must have; default: any")
      .Group(group);
  app.Add("--jwt-role-claim", flags.access.jwt.role_claim, "claim with the role of a JWT")
      .ShowDefault()
      .Group(group);
  app.Add("--jwt-project-claim", flags.access.jwt.project_claim,
          "claim with the project of a JWT, or a list of them, to which its changes are bound")
      .ShowDefault()
      .Group(group);
  app.Add("--audit-log", flags.audit.path,
          "file for changes and refused calls, as JSON lines; default: none")
      .Group(group);
  app.Add("--audit-log-mib", flags.audit_mib, "size at which the audit log is rotated, MiB")
      .InRange(int64_t{1}, int64_t{1} << 20)
      .ShowDefault()
      .Group(group);
  app.Add("--audit-log-files", flags.audit.files, "rotated audit logs that are kept")
      .InRange(1, 1000)
      .ShowDefault()
      .Group(group);
}

void AddBackupFlags(Command app, Flags& flags) {
  const std::string group = "Backups";
  const Option directory =
      app.Add("--backup-directory", flags.backup_directory,
              "directory of incremental backups of the store, on another disk; created if missing; "
              "none: no backups")
          .Group(group);
  app.Add("--backup-every", flags.backup_every_minutes,
          "minutes between backups; 0: only on request ('nibble-coordinator backup now')")
      .InRange(0.0, 1e6)
      .ShowDefault()
      .Needs(directory)
      .Group(group);
  app.Add("--backup-keep", flags.backup_keep,
          "backups to keep; older ones are removed, unless the store has fewer updates than they")
      .InRange(1, 100'000)
      .ShowDefault()
      .Needs(directory)
      .Group(group);
}

void AddObjectStoreFlags(Command app, Flags& flags) {
  const std::string group = "Checkpoints in object storage";
  const Option place =
      app.Add("--object-store", flags.controller.object_store,
              "s3://BUCKET/PREFIX: workers copy each job's newest checkpoint to PREFIX/JOB, with "
              "the "
              "credentials of their environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
              "AWS_ENDPOINT_URL); none: no copies")
          .Check([](const std::string& text) {
            return std::string(s3::ParsePlace(text).status().message());
          })
          .Group(group);
  app.Add("--object-store-keep", flags.controller.object_store_keep,
          "newest copies of each job that stay there")
      .InRange(1, kMaxUploadCopies)
      .ShowDefault()
      .Needs(place)
      .Group(group);
}

// Limits on all callers together and on each of them.
void AddLimitFlags(Command app, Flags& flags) {
  ControllerOptions& controller = flags.controller;
  ServerOptions& server = flags.server;
  const std::string group = "Limits";
  app.Add("--max-message-bytes", server.max_message_bytes, "size of a request or report")
      .InRange(1 << 16, 1 << 28)
      .ShowDefault()
      .Group(group);
  app.Add("--max-spec-bytes", server.service.spec_bytes, "size of a submitted job spec")
      .InRange(int64_t{1}, kMaxSpecBytes)
      .ShowDefault()
      .Group(group);
  app.Add("--max-connections", server.connections.all, "connections open at once")
      .InRange(size_t{1}, size_t{1} << 20)
      .ShowDefault()
      .Group(group);
  app.Add("--max-connections-per-address", server.connections.per_address,
          "connections of one address open at once")
      .InRange(size_t{1}, size_t{1} << 20)
      .ShowDefault()
      .Group(group);
  app.Add("--max-buffer-bytes", server.buffer_bytes, "size of gRPC's buffers of all connections")
      .InRange(int64_t{1} << 24, int64_t{1} << 40)
      .ShowDefault()
      .Group(group);
  app.Add("--max-calls-per-connection", server.streams_per_connection,
          "concurrent calls of one connection")
      .InRange(1, 1'000'000)
      .ShowDefault()
      .Group(group);
  app.Add("--requests-per-second", server.rate.per_second,
          "requests per second of one caller, or of one address if callers are not authenticated; "
          "0: unlimited")
      .InRange(0.0, 1e9)
      .ShowDefault()
      .Group(group);
  app.Add("--request-burst", server.rate.burst, "requests at once, as above, after a pause")
      .InRange(1.0, 1e9)
      .ShowDefault()
      .Group(group);
  app.Add("--change-ms", server.service.change_ms,
          "a change that is not durable after this time is answered with DEADLINE_EXCEEDED")
      .InRange(int64_t{1}, int64_t{3'600'000})
      .ShowDefault()
      .Group(group);
  app.Add("--max-streams-per-caller", server.streams_per_caller,
          "watches, waits and log streams that one authenticated caller has open at once; of log "
          "streams a quarter of --max-log-streams")
      .InRange(1, 1'000'000)
      .ShowDefault()
      .Group(group);
  app.Add("--max-watches", controller.watches.watches, "watches open at once")
      .InRange(0, 1'000'000)
      .ShowDefault()
      .Group(group);
  app.Add("--max-watch-buffer-bytes", controller.watches.kept_bytes,
          "size of the messages kept for watches that read slowly, all together")
      .InRange(size_t{1} << 10, size_t{1} << 30)
      .ShowDefault()
      .Group(group);
  app.Add("--watch-stall-ms", controller.watches.stall_ms,
          "a watch or log stream that takes none of its messages for this long ends")
      .InRange(int64_t{1}, int64_t{86'400'000})
      .ShowDefault()
      .Group(group);
  app.Add("--max-waits", controller.watches.waits, "waits open at once")
      .InRange(0, 1'000'000)
      .ShowDefault()
      .Group(group);
  app.Add("--max-log-streams", server.service.logs.streams, "log streams open at once")
      .InRange(0, 100'000)
      .ShowDefault()
      .Group(group);
  app.Add("--max-workers", controller.max_sessions, "workers connected at once")
      .InRange(size_t{1}, static_cast<size_t>(kMaxWorkers))
      .ShowDefault()
      .Group(group);
}

std::string NewStoreId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(uint32_t{random()}, absl::kZeroPad8));
  return id;
}

// systemd's absence is no error; that it cannot be reached is one to know of, and none to stop for.
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

// Callers are authenticated if there is any means of it.
bool Authenticates(const Flags& flags) {
  return flags.tls.given() || !flags.access.bootstrap_file.empty() ||
         !flags.access.jwks_file.empty();
}

// Null if HTTP is turned off.
absl::StatusOr<std::unique_ptr<CoordinatorHttp>> ServeHttp(const Controller& controller,
                                                           const Store& store, const Flags& flags,
                                                           const std::shared_ptr<const Credentials>& credentials,
                                                           AlertIntake& intake) {
  if (flags.accept_alerts && flags.http.empty()) {
    return absl::FailedPreconditionError("--accept-alerts: --http '' turns HTTP off");
  }
  if (flags.accept_alerts && Authenticates(flags) && flags.alerts_token_file.empty()) {
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

// Who may call: the parts that the server borrows.
struct Security {
  std::shared_ptr<const Credentials> credentials;
  std::unique_ptr<Authenticator> authenticator;  // null: callers are not authenticated
  std::unique_ptr<AuditLog> audit;               // null: none
};

// `lost`: a line of the audit log was lost.
absl::StatusOr<Security> OpenSecurity(const Flags& flags, std::function<void()> lost) {
  Security security;
  NIBBLE_ASSIGN_OR_RETURN(security.credentials, Credentials::Make(flags.tls));
  const PeerName& own = security.credentials->own_name();
  if (security.credentials->secure() && own.kind != PeerKind::kCoordinator) {
    return absl::FailedPreconditionError(
        absl::StrCat("--tls-cert: it names ", own.ToString(), "; allowed: nibble://coordinator"));
  }
  if (Authenticates(flags)) {
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

void LogSecurity(const Flags& flags, const Security& security) {
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
                                           CoordinatorMetrics& metrics, const Flags& flags) {
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

absl::Status Serve(const Flags& flags, ServiceManager& manager) {
  NIBBLE_RETURN_IF_ERROR(
      CheckListen(flags.server.listen, flags.server.insecure, flags.tls.given()));
  NIBBLE_ASSIGN_OR_RETURN(const AllowList allow, AllowList::Parse(flags.notify_allow));
  Notifier::Options notify = {.allow = allow};
  if (!flags.notify_secret_file.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(notify.secret, ReadSecret(flags.notify_secret_file));
  }
  const Stopwatch opening;
  RocksStoreOptions store_options;
  store_options.cluster = flags.controller.cluster;
  NIBBLE_ASSIGN_OR_RETURN(const auto store, RocksStore::Open(flags.store, store_options));
  const double opened_seconds = opening.seconds();
  const SystemClock clock;
  std::atomic<bool> failed = false;
  ControllerOptions options = flags.controller;
  const bool restored = IsRestored(flags.store);
  options.restored = options.restored || restored;
  options.fresh_store_id = NewStoreId();
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
  NIBBLE_ASSIGN_OR_RETURN(auto http, ServeHttp(*controller, *store, flags, security.credentials, intake));
  ServerOptions server_options = flags.server;
  server_options.service.logs.stall_ms = flags.controller.watches.stall_ms;
  server_options.credentials = security.credentials;
  server_options.authenticator = security.authenticator.get();
  server_options.audit = security.audit.get();
  if (http != nullptr) server_options.http = http->address();
  WarnOfDescriptors(server_options.connections);
  NIBBLE_ASSIGN_OR_RETURN(const auto server, CoordinatorServer::Start(*controller, server_options));
  Notifier notifier(*controller, std::move(notify));
  LogSecurity(flags, security);
  const auto backups = StartBackups(*store, clock, controller->metrics(), flags);
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
  Flags flags;
  CommandLine app("The coordinator of a Nibble cluster: jobs, slots, recipes, checkpoints.",
                  "nibble-coordinator");
  app.SetVersion("nibble-coordinator " + BuildVersion());
  app.Footer("Backups: nibble-coordinator backup --help");
  AddFlags(app, flags);
  AddNotifyFlags(app, flags);
  AddSecurityFlags(app, flags);
  AddBackupFlags(app, flags);
  AddObjectStoreFlags(app, flags);
  AddLimitFlags(app, flags);
  if (const std::optional<int> ended = ParseWithSettings(app, {.command_line_only = {"restored"}},
                                                         argc, argv, /*usage_exit_code=*/2)) {
    return *ended;
  }
  flags.http_given = app.GetOption("--http").Given();
  // Names of objects follow after one slash.
  for (std::string& place = flags.controller.object_store; !place.empty() && place.back() == '/';) {
    place.pop_back();
  }
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
  return nibble::Main(argc, argv);
}
