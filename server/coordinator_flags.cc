#include "server/coordinator_flags.h"

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/command_line/command_line.h"
#include "common/s3/object_store.h"
#include "common/version/build_version.h"
#include "server/notify/allow_list.h"
#include "server/state/limits.h"
#include "settings/settings_file.h"

namespace nibble {
namespace {

void AddFlags(Command app, CoordinatorFlags& flags) {
  app.Add("--store", flags.store, "directory of the durable state; created if missing").Required();
  app.Add("--cluster", flags.controller.cluster,
          "name of the cluster; another cluster's store is refused")
      .Required();
  app.AddFlag(
      "--standby", flags.standby,
      "while another coordinator has the store, wait, and take over when that one has ended; "
      "the store has to exist");
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
          "port 0, and the default port when it is taken, is a free port; '' turns it off")
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

void AddNotifyFlags(Command app, CoordinatorFlags& flags) {
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
void AddSecurityFlags(Command app, CoordinatorFlags& flags) {
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

void AddBackupFlags(Command app, CoordinatorFlags& flags) {
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

void AddObjectStoreFlags(Command app, CoordinatorFlags& flags) {
  const std::string group = "Checkpoints in object storage";
  const Option place =
      app.Add("--object-store", flags.controller.object_store,
              "s3://BUCKET/PREFIX: workers copy each job's newest checkpoint to PREFIX/JOB, with "
              "the credentials of their environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
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
void AddLimitFlags(Command app, CoordinatorFlags& flags) {
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

}  // namespace

std::optional<int> ParseCoordinatorFlags(int argc, char** argv, CoordinatorFlags& flags) {
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
  // The names of objects are appended after a slash.
  for (std::string& place = flags.controller.object_store; !place.empty() && place.back() == '/';) {
    place.pop_back();
  }
  return std::nullopt;
}

}  // namespace nibble
