// nibble-coordinator: the coordinator of one cluster.
//
// Ends with 0 when it was told to (SIGTERM, SIGINT), 1 when it could not start or its store has
// failed, 2 when the command line is wrong. Where the store's directory is removed underneath it,
// it does not end: it answers reads, refuses changes, and is not ready.
#include <signal.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/controller/log.h"
#include "server/metrics/coordinator_http.h"
#include "server/notify/allow_list.h"
#include "server/notify/notifier.h"
#include "server/service/coordinator_server.h"
#include "server/state/limits.h"
#include "server/store/rocks_store.h"

namespace nibble {
namespace {

constexpr char kVersion[] = "0.1";

struct Flags {
  std::string store;
  ControllerOptions controller;
  ServerOptions server;
  std::string http = kCoordinatorHttp;
  bool http_given = false;
  std::vector<std::string> notify_allow;
  std::string notify_secret_file;
  int64_t tick_ms = 100;
  int64_t grace_ms = 5000;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--store", flags.store, "directory of the durable state; made if missing")
      ->required();
  app.add_option("--cluster", flags.controller.cluster,
                 "name of the cluster; another cluster's store is refused")
      ->required();
  app.add_flag(
      "--restored", flags.controller.restored,
      "the store was put back from a backup: begin a new epoch, in which workers' jobs and "
      "checkpoints are learned again");
  app.add_option_function<double>(
         "--orphan-grace",
         [&flags](double hours) {
           flags.controller.orphan_grace_ms = static_cast<int64_t>(hours * 3'600'000);
         },
         "hours: what the store does not know may be removed from workers no earlier")
      ->check(CLI::Range(0.0, 8760.0))
      ->default_str("6");
  app.add_option("--listen", flags.server.listen, "host:port; port 0 takes a free one")
      ->capture_default_str();
  app.add_option("--http", flags.http,
                 "host:port of plain HTTP for metrics and probes; port 0 takes a free one, as does "
                 "the default where it is taken; '' turns it off")
      ->capture_default_str();
  app.add_flag("--insecure", flags.server.insecure,
               "listen off loopback although callers are not authenticated");
  app.add_option("--lease-ms", flags.controller.lease_ms,
                 "a worker that is silent for so long counts as lost")
      ->check(CLI::Range(int64_t{100}, int64_t{3'600'000}))
      ->capture_default_str();
  app.add_option("--copies", flags.controller.copies,
                 "workers that hold each shard of a newest checkpoint")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app.add_option("--preemption-grace-ms", flags.controller.policy.grace_ms,
                 "a job that is preempted has so long for its checkpoint")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}))
      ->capture_default_str();
  app.add_option("--grow-interval-ms", flags.controller.policy.grow_interval_ms,
                 "an elastic job grows when its start or last change of size is so long ago")
      ->check(CLI::Range(int64_t{0}, int64_t{86'400'000}))
      ->capture_default_str();
  app.add_option("--hang-factor", flags.controller.hang_factor,
                 "a rank without a step for so many of its median steps is hung")
      ->check(CLI::Range(2.0, 1e6))
      ->capture_default_str();
  app.add_option("--switch-wait-ms", flags.controller.switch_wait_ms,
                 "the answer to a change of a recipe waits so long until ranks have switched, to "
                 "name their step; 0: not at all")
      ->check(CLI::Range(int64_t{0}, int64_t{30'000}))
      ->capture_default_str();
  app.add_option("--tick-ms", flags.tick_ms, "between two looks at the time and the queues")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000}))
      ->capture_default_str();
  app.add_option("--grace-ms", flags.grace_ms, "for calls under way when it is told to end")
      ->check(CLI::Range(int64_t{0}, int64_t{600'000}))
      ->capture_default_str();
}

void AddNotifyFlags(CLI::App& app, Flags& flags) {
  app.add_option("--notify-allow", flags.notify_allow,
                 "HOST[:PORT][=ADDRESS[/BITS]] that jobs may have their events posted to, any "
                 "number of times; none: nowhere (docs/guide/notifications.md)")
      ->allow_extra_args(false)
      ->check([](const std::string& pattern) {
        return std::string(AllowList::Parse({pattern}).status().message());
      })
      ->group("Notifications");
  app.add_option("--notify-secret-file", flags.notify_secret_file,
                 "posted events are signed with the secret in this file (HMAC-SHA256)")
      ->group("Notifications");
}

// What callers together, and each of them, may take.
void AddLimitFlags(CLI::App& app, Flags& flags) {
  ControllerOptions& controller = flags.controller;
  ServerOptions& server = flags.server;
  const std::string group = "Limits";
  app.add_option("--max-message-bytes", server.max_message_bytes, "of a request or report")
      ->check(CLI::Range(1 << 16, 1 << 28))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-spec-bytes", server.service.spec_bytes, "of a job that is submitted")
      ->check(CLI::Range(int64_t{1}, kMaxSpecBytes))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-buffer-bytes", server.buffer_bytes, "of all connections, in gRPC")
      ->check(CLI::Range(int64_t{1} << 24, int64_t{1} << 40))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-calls-per-connection", server.streams_per_connection, "at once")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--requests-per-second", server.rate.per_second, "of one address; 0: no bound")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str()
      ->group(group);
  app.add_option("--request-burst", server.rate.burst, "of one address, at once after a pause")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str()
      ->group(group);
  app.add_option("--change-ms", server.service.change_ms,
                 "a change that is not durable by then is answered so")
      ->check(CLI::Range(int64_t{1}, int64_t{3'600'000}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-watches", controller.watches.watches, "open at once")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-watch-buffer-bytes", controller.watches.kept_bytes,
                 "of changes that are kept for watches that are behind, all of them together")
      ->check(CLI::Range(size_t{1} << 10, size_t{1} << 30))
      ->capture_default_str()
      ->group(group);
  app.add_option("--watch-stall-ms", controller.watches.stall_ms,
                 "a watch that has something to read reads within this time")
      ->check(CLI::Range(int64_t{1}, int64_t{86'400'000}))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-waits", controller.watches.waits, "open at once")
      ->check(CLI::Range(0, 1'000'000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-log-streams", server.service.logs.streams, "open at once")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-workers", controller.max_sessions, "connected at once")
      ->check(CLI::Range(size_t{1}, static_cast<size_t>(kMaxWorkers)))
      ->capture_default_str()
      ->group(group);
}

std::string NewStoreId() {
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, absl::Hex(uint32_t{random()}, absl::kZeroPad8));
  return id;
}

sigset_t EndSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// Null where it is turned off.
absl::StatusOr<std::unique_ptr<CoordinatorHttp>> ServeHttp(const Controller& controller,
                                                           const Store& store, const Flags& flags) {
  if (flags.http.empty()) {
    Log(LogLevel::kInfo, "no HTTP: neither metrics nor probes are served");
    return nullptr;
  }
  auto http = CoordinatorHttp::Start(controller, store, controller.metrics(),
                                     {.listen = flags.http,
                                      .insecure = flags.server.insecure,
                                      .or_free_port = !flags.http_given,
                                      .version = kVersion});
  if (!http.ok()) return http.status();
  const std::string& address = (*http)->address();
  if (!flags.http_given && address != flags.http) {
    Log(LogLevel::kWarning, absl::StrCat(flags.http, " is taken"));
  }
  Log(LogLevel::kInfo, absl::StrCat("metrics at http://", address));
  return http;
}

absl::Status Serve(const Flags& flags) {
  absl::Status status = CheckListen(flags.server.listen, flags.server.insecure);
  if (!status.ok()) return status;
  const absl::StatusOr<AllowList> allow = AllowList::Parse(flags.notify_allow);
  if (!allow.ok()) return allow.status();
  Notifier::Options notify = {.allow = *allow};
  if (!flags.notify_secret_file.empty()) {
    absl::StatusOr<std::string> secret = ReadSecret(flags.notify_secret_file);
    if (!secret.ok()) return secret.status();
    notify.secret = *std::move(secret);
  }
  const Stopwatch opening;
  RocksStoreOptions store_options;
  store_options.cluster = flags.controller.cluster;
  auto store = RocksStore::Open(flags.store, store_options);
  if (!store.ok()) return store.status();
  const double opened_seconds = opening.seconds();
  const SystemClock clock;
  std::atomic<bool> failed = false;
  // Where its directory is gone it stays, refuses changes and is not ready: started again, it
  // would begin with an empty store in that place.
  ControllerOptions options = flags.controller;
  options.fresh_store_id = NewStoreId();
  options.may_post = [&allow](const std::string& url) { return allow->MayPost(url); };
  auto controller = Controller::Start(**store, clock, options, [&failed](const absl::Status& why) {
    if (!absl::IsNotFound(why)) failed = true;
  });
  if (!controller.ok()) return controller.status();
  (*controller)->metrics().Recovered("store", opened_seconds);
  auto http = ServeHttp(**controller, **store, flags);
  if (!http.ok()) return http.status();
  auto server = CoordinatorServer::Start(**controller, flags.server);
  if (!server.ok()) return server.status();
  Notifier notifier(**controller, std::move(notify));
  if (flags.server.insecure) Log(LogLevel::kWarning, "callers are not authenticated (--insecure)");
  Log(LogLevel::kInfo,
      absl::StrCat("cluster ", flags.controller.cluster, " on port ", (*server)->port(), ", ",
                   (*store)->Info().last_sequence, " updates so far"));
  if (*http != nullptr) (*http)->SetServing(true);
  const sigset_t signals = EndSignals();
  const timespec pause = {static_cast<time_t>(flags.tick_ms / 1000),
                          static_cast<long>(flags.tick_ms % 1000 * 1'000'000)};
  bool healthy = true;
  while (!failed && sigtimedwait(&signals, nullptr, &pause) < 0) {
    (*controller)->Tick();
    notifier.Tick();
    if (!healthy || (*controller)->Health().ok()) continue;
    healthy = false;
    (*server)->SetServing(false);
  }
  (*server)->SetServing(false);
  if (*http != nullptr) (*http)->SetServing(false);
  Log(LogLevel::kInfo, failed ? "ends because its store has failed" : "ends as told");
  (*controller)->StopWaiting();
  (*server)->Shutdown(flags.grace_ms);
  return (*controller)->Health();
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("The coordinator of a Nibble cluster: jobs, slots, recipes, checkpoints.",
               "nibble-coordinator");
  AddFlags(app, flags);
  AddNotifyFlags(app, flags);
  AddLimitFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  flags.http_given = app.count("--http") > 0;
  // Before any thread begins: all of them inherit it, and Serve takes the signals in turn.
  const sigset_t signals = EndSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const absl::Status status = Serve(flags);
  if (status.ok()) return 0;
  Log(LogLevel::kError, status.ToString());
  return 1;
}

}  // namespace
}  // namespace nibble

int main(int argc, char** argv) { return nibble::Main(argc, argv); }
