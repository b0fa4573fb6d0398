// nibble-worker: the daemon of one node.
//
//   nibble-worker --coordinator HOST:PORT --data DIRECTORY --name NAME --slots N
//
// Exit codes: 0 stopped by a signal, 1 error, 2 usage, 3 superseded by a newer daemon of this name.

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/command_line/command_line.h"
#include "common/files/files.h"
#include "common/identity/credentials.h"
#include "common/listen_address.h"
#include "common/process/spawn.h"
#include "common/process/standard_descriptors.h"
#include "common/protocol/protocol_version.h"
#include "common/service/service_manager.h"
#include "common/status_macros.h"
#include "common/version/build_version.h"
#include "settings/settings_file.h"
#include "worker/agent/cards.h"
#include "worker/agent/daemon.h"
#include "worker/agent/host_topology.h"
#include "worker/agent/slot_plan.h"

namespace {

constexpr int kError = 1;
constexpr int kUsage = 2;
constexpr int kSuperseded = 3;
std::atomic<bool> stop_requested = false;
void RequestStop(int) { stop_requested.store(true, std::memory_order_relaxed); }

struct Arguments {
  std::string coordinator;
  std::string data;
  std::string name;
  std::string address = "127.0.0.1:0";
  std::string trainer;
  std::string exporter;
  std::string device = "cpu";
  int32_t slots = 0;  // 0: not given
  std::vector<std::string> labels;
  nibble::TlsFiles tls;
  std::string token_file;
  std::vector<std::string> roots;
  std::string collectives;
  int64_t beat_ms = 1000;
  double hang_steps = 20;
  double hang_seconds = 120;
  int64_t keep_ranks = 0;  // seconds
  int64_t trash_hours = nibble::Trash::kDefaultHours;
  std::optional<int64_t> trash_bytes;
  int64_t log_mib = 16;
  std::string http = nibble::kWorkerHttp;
  bool http_given = false;
  bool insecure = false;
  std::string precision_series = "sample";
  double peak_flops = 0;
  std::string pin = "node";
};

void Log(const std::string& line) {
  std::fprintf(stderr, "%s nibble-worker: %s\n",
               absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()).c_str(),
               line.c_str());
}

constexpr size_t kMaxTokenBytes = 16 << 10;

// The certificates and the token; the certificate must have the name of the worker.
absl::StatusOr<nibble::LinkSecurity> SecurityOf(const Arguments& arguments) {
  nibble::LinkSecurity security;
  NIBBLE_ASSIGN_OR_RETURN(security.credentials, nibble::Credentials::Make(arguments.tls));
  const nibble::PeerName& own = security.credentials->own_name();
  const nibble::PeerName wanted = {nibble::PeerKind::kWorker, arguments.name};
  if (security.credentials->secure() && own != wanted) {
    return absl::FailedPreconditionError(absl::StrCat("--tls-cert: it names ", own.ToString(),
                                                      "; allowed: ", wanted.ToString(),
                                                      ", the name of --name"));
  }
  if (arguments.token_file.empty()) return security;
  const auto coordinator = nibble::ParseListenAddress("coordinator", arguments.coordinator);
  const bool here = coordinator.ok() && coordinator->loopback;
  if (!security.secure() && !here && !arguments.insecure) {
    return absl::FailedPreconditionError(
        absl::StrCat("--token-file: the token would be sent unencrypted to ", arguments.coordinator,
                     "; give --tls-cert, --tls-key and --tls-ca, or allow it with --insecure"));
  }
  NIBBLE_ASSIGN_OR_RETURN(const std::string text,
                          nibble::ReadWholeFile(arguments.token_file, kMaxTokenBytes));
  security.token = std::string(absl::StripAsciiWhitespace(text));
  if (security.token.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file: '", arguments.token_file, "' is empty"));
  }
  return security;
}

// Finds out where the slots are, and what their ranks are bound to.
absl::Status PlaceSlots(const Arguments& arguments, const std::vector<nibble::Card>& cards,
                        nibble::Daemon::Options& options) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<int> allowed, nibble::AllowedThreads());
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<nibble::HostNode> nodes,
                          nibble::ReadHostNodes("", allowed));
  std::vector<int> card_nodes;
  for (const nibble::Card& card : cards) card_nodes.push_back(nibble::NumaNodeOf("", card.pci));
  const nibble::Pinning pinning = arguments.pin == "none"    ? nibble::Pinning::kNone
                                  : arguments.pin == "cores" ? nibble::Pinning::kCores
                                                             : nibble::Pinning::kNode;
  NIBBLE_ASSIGN_OR_RETURN(
      nibble::SlotPlan plan,
      nibble::PlanSlots(nodes, cards, card_nodes, options.identity.slots(), pinning));
  *options.identity.mutable_topology() = std::move(plan.topology);
  for (const std::string& notice : plan.notices) Log(notice);
  options.pins = std::move(plan.pins);
  if (nodes.size() > 1 && pinning != nibble::Pinning::kNone && !nibble::MaySetMemoryPolicy()) {
    Log("this process may not set memory policies; ranks are pinned to cores alone");
    for (nibble::SlotPin& pin : options.pins) pin.memory_node = -1;
  }
  return absl::OkStatus();
}

absl::StatusOr<nibble::Daemon::Options> OptionsOf(const Arguments& arguments) {
  nibble::Daemon::Options options;
  nibble::v1::WorkerIdentity& identity = options.identity;
  identity.set_name(arguments.name);
  identity.set_address(arguments.address);
  identity.set_slots(std::max(arguments.slots, 1));
  identity.set_version(nibble::BuildVersion());
  identity.set_protocol(nibble::kProtocolVersion);
  identity.mutable_hardware()->set_device(nibble::v1::DEVICE_CPU);
  std::vector<nibble::Card> cards;
  if (arguments.device != "cpu") {
    NIBBLE_ASSIGN_OR_RETURN(cards, nibble::FindCards(std::getenv("CUDA_VISIBLE_DEVICES")));
    *identity.mutable_hardware() = nibble::HardwareOf(cards);
    if (arguments.slots == 0) identity.set_slots(static_cast<int32_t>(cards.size()));
    NIBBLE_RETURN_IF_ERROR(nibble::CheckSlots(std::max(identity.slots(), 1), cards));
    for (const nibble::Card& card : cards) options.cards.push_back(card.id);
  }
  NIBBLE_RETURN_IF_ERROR(PlaceSlots(arguments, cards, options));
  for (const std::string& label : arguments.labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrCat("--label: '", label, "' is not KEY=VALUE"));
    }
    nibble::v1::Label& one = *identity.add_labels();
    one.set_key(label.substr(0, equals));
    one.set_value(label.substr(equals + 1));
  }
  std::error_code error;
  options.data_directory = std::filesystem::absolute(arguments.data, error);
  const std::filesystem::space_info space =
      std::filesystem::space(std::filesystem::absolute(arguments.data).parent_path(), error);
  if (!error) identity.mutable_hardware()->set_store_bytes(static_cast<int64_t>(space.available));
  options.coordinator = arguments.coordinator;
  NIBBLE_ASSIGN_OR_RETURN(options.security, SecurityOf(arguments));
  NIBBLE_ASSIGN_OR_RETURN(options.roots, nibble::AllowedRoots::Make(arguments.roots));
  if (!arguments.collectives.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(options.collectives,
                            nibble::FindCollectiveAddress(arguments.collectives));
  }
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  options.trainer = arguments.trainer;
  if (options.trainer.empty()) options.trainer = self.parent_path() / "nibble-trainer";
  options.exporter = arguments.exporter;
  if (options.exporter.empty()) options.exporter = self.parent_path() / "nibble-export";
  options.insecure = arguments.insecure;
  options.beat = std::chrono::milliseconds(arguments.beat_ms);
  // Daemons that lost the coordinator at once do not reconnect at once.
  options.backoff.seed = static_cast<uint64_t>(absl::ToUnixNanos(absl::Now())) ^
                         std::hash<std::string>()(arguments.name);
  options.watchdog = {.median_steps = arguments.hang_steps,
                      .least_ms = static_cast<int64_t>(arguments.hang_seconds * 1000)};
  options.keep_ranks = std::chrono::seconds(arguments.keep_ranks);
  options.trash_hours = arguments.trash_hours;
  options.trash_bytes = arguments.trash_bytes;
  options.logs.file_bytes = arguments.log_mib << 20;
  options.http = {.listen = arguments.http,
                  .insecure = arguments.insecure || arguments.tls.given(),
                  .or_free_port = !arguments.http_given};
  if (arguments.precision_series == "all") options.figures.precision_layers = 0;
  options.figures.peak_flops = arguments.peak_flops;
  options.log = Log;
  return options;
}

// systemd's absence is no error; that it cannot be reached is one to know of, and none to stop for.
void LogUnreported(const absl::Status& reported) {
  if (!reported.ok()) Log(std::string(reported.message()));
}

int RunDaemon(const Arguments& arguments, nibble::ServiceManager& manager) {
  absl::StatusOr<nibble::Daemon::Options> options = OptionsOf(arguments);
  if (!options.ok()) {
    Log(absl::StrCat(
        arguments.device == "cpu" ? "" : absl::StrCat("--device ", arguments.device, ": "),
        options.status().message()));
    return kUsage;
  }
  options->alive = [&manager] {
    LogUnreported(manager.Alive(nibble::ServiceManager::Clock::now()));
  };
  const int32_t slots = options->identity.slots();
  const std::string model = options->identity.hardware().model();
  absl::Status status;
  {
    absl::StatusOr<std::unique_ptr<nibble::Daemon>> daemon =
        nibble::Daemon::Start(*std::move(options));
    status = daemon.status();
    if (daemon.ok()) {
      Log(absl::StrCat(arguments.name, ", incarnation ", (*daemon)->incarnation(), ", ", slots,
                       " slots", model.empty() ? "" : absl::StrCat(" of ", model), ", ",
                       (*daemon)->http_address().empty()
                           ? "no HTTP"
                           : "metrics at http://" + (*daemon)->http_address()));
      if (arguments.insecure && !arguments.tls.given()) {
        Log("callers are not authenticated (--insecure)");
      }
      if (!arguments.http_given && (*daemon)->http_address() != arguments.http) {
        Log(absl::StrCat(arguments.http, " is in use; another port was chosen"));
      }
      LogUnreported(manager.Ready(absl::StrCat(arguments.name, ", ", slots, " slots")));
      status = (*daemon)->Run(stop_requested);
      LogUnreported(manager.Stopping());
    }
  }
  if (status.ok()) return 0;
  Log(std::string(status.message()));
  return absl::IsAborted(status) ? kSuperseded : kError;
}

}  // namespace

int main(int argc, char** argv) {
  nibble::ReserveStandardDescriptors();
  nibble::CloseNewFilesToOthers();
  Arguments arguments;
  nibble::CommandLine app("The daemon of one node: runs ranks and stores checkpoints",
                          "nibble-worker");
  app.SetVersion("nibble-worker " + nibble::BuildVersion());
  app.Add("--coordinator", arguments.coordinator, "HOST:PORT")
      .Required()
      .Check([](const std::string& given) {
        // gRPC knows more forms of a host than a listener's; of URLs only its own.
        const bool url = absl::StrContains(given, "://") && !absl::StartsWith(given, "dns://");
        if (!url) return std::string();
        return std::string(nibble::ParseListenAddress("address", given).status().message());
      });
  app.Add("--data", arguments.data, "Directory for checkpoints, logs and records").Required();
  app.Add("--name", arguments.name, "Unique in the cluster").Required();
  app.Add("--address", arguments.address, "HOST:PORT where other workers reach this one")
      .ShowDefault();
  app.Add("--slots", arguments.slots,
          "Ranks that run here at once; default: the cards of this machine with --device cuda, "
          "otherwise 1")
      .InRange(1, 1024);
  app.Add("--device", arguments.device, "Device of a slot")
      .ShowDefault()
      .OneOf({"cpu", "cuda", "gpu"});
  app.Add("--pin", arguments.pin,
          "Bind ranks to the cores and memory of their slot's NUMA node, or to its share of these "
          "cores, or not at all")
      .ShowDefault()
      .OneOf({"none", "node", "cores"});
  app.Add("--label", arguments.labels, "KEY=VALUE, for placement; may be repeated");
  app.Add("--trainer", arguments.trainer, "Path of nibble-trainer; default: beside this program");
  app.Add("--exporter", arguments.exporter, "Path of nibble-export; default: beside this program");
  app.Add("--tls-cert", arguments.tls.certificate,
          "PEM file of the certificate of nibble://worker/NAME; with it callers need certificates");
  app.Add("--tls-key", arguments.tls.key, "PEM file of its private key");
  app.Add("--tls-ca", arguments.tls.authority,
          "PEM file of the authorities that sign the certificates of coordinator and workers");
  app.Add("--token-file", arguments.token_file,
          "File with this worker's token, for a coordinator without TLS that authenticates");
  app.Add("--collectives", arguments.collectives,
          "Interface, or IPv4 address of one, for traffic between ranks, which is not encrypted; "
          "default: the host of --address");
  app.Add("--root", arguments.roots,
          "Directory that paths in specs and destinations of exports must be in; may be repeated; "
          "default: any")
      .OneValueEach();
  app.Add("--beat-ms", arguments.beat_ms, "Interval between reports, milliseconds")
      .ShowDefault()
      .InRange(1, 60'000);
  app.Add("--hang-steps", arguments.hang_steps,
          "A rank that makes no step for this multiple of its median step time hangs")
      .ShowDefault()
      .InRange(1.0, 1e6);
  app.Add("--hang-seconds", arguments.hang_seconds,
          "Minimum time without a step before a rank counts as hung")
      .ShowDefault()
      .InRange(0.001, 1e6);
  app.Add("--keep-ranks", arguments.keep_ranks,
          "Seconds that the process of a rank waits, after another rank of its job was lost, to "
          "continue in the job's next attempt; 0: it ends, and a new one is started")
      .ShowDefault()
      .InRange(0, 3600);
  app.Add("--trash-hours", arguments.trash_hours,
          "Hours that deleted shards stay in DATA/trash; 0: until the next look, within a minute. "
          "The newest checkpoint of a job that is nowhere else here stays")
      .ShowDefault()
      .InRange(0, 87'600);
  app.Add("--trash-bytes", arguments.trash_bytes,
          "Size of DATA/trash, bytes; default: a tenth of the file system; 0: as --trash-hours 0")
      .AtLeast(0);
  app.Add("--log-mib", arguments.log_mib, "Size of a log file, MiB; each rank keeps at most two")
      .ShowDefault()
      .InRange(1, 1 << 20);
  app.Add("--http", arguments.http,
          "HOST:PORT of plain HTTP for metrics and probes, off loopback with TLS or --insecure; "
          "port 0 "
          "picks a free one, and so does "
          "the default if its port is in use; '' turns it off")
      .ShowDefault();
  app.AddFlag("--insecure", arguments.insecure,
              "Listen off loopback without authenticating callers");
  app.Add("--precision-series", arguments.precision_series,
          "Layers whose precision statistics are exported as metrics")
      .ShowDefault()
      .OneOf({"sample", "all"});
  app.Add("--peak-flops", arguments.peak_flops,
          "Peak FLOP/s of a slot, for the utilisation metric; 0: unknown")
      .ShowDefault()
      .InRange(0.0, 1e20);
  if (const std::optional<int> ended = nibble::ParseWithSettings(app, {}, argc, argv, kUsage)) {
    return *ended;
  }
  arguments.http_given = app.GetOption("--http").Given();
  (void)signal(SIGINT, RequestStop);
  (void)signal(SIGTERM, RequestStop);
  (void)signal(SIGPIPE, SIG_IGN);
  absl::StatusOr<nibble::ServiceManager> manager = nibble::ServiceManager::FromEnvironment();
  if (!manager.ok()) {
    Log(std::string(manager.status().message()));
    return kError;
  }
  return RunDaemon(arguments, *manager);
}
