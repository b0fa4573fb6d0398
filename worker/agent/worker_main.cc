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
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/version.h"
#include "settings/settings_file.h"
#include "worker/agent/cards.h"
#include "worker/agent/daemon.h"

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
  std::string root_certificates, certificate, private_key;
  int64_t beat_ms = 1000;
  double hang_steps = 20;
  double hang_seconds = 120;
  int64_t log_mib = 16;
  std::string http = nibble::kWorkerHttp;
  bool http_given = false;
  bool insecure = false;
  std::string precision_series = "sample";
  double peak_flops = 0;
};

void Log(const std::string& line) {
  std::fprintf(stderr, "%s nibble-worker: %s\n",
               absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone()).c_str(),
               line.c_str());
}

absl::StatusOr<std::string> ReadSecret(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return std::string{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::StatusOr<nibble::Daemon::Options> OptionsOf(const Arguments& arguments) {
  nibble::Daemon::Options options;
  nibble::v1::WorkerIdentity& identity = options.identity;
  identity.set_name(arguments.name);
  identity.set_address(arguments.address);
  identity.set_slots(std::max(arguments.slots, 1));
  identity.set_version(nibble::kVersion);
  identity.mutable_hardware()->set_device(nibble::v1::DEVICE_CPU);
  if (arguments.device != "cpu") {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<nibble::Card> cards,
                            nibble::FindCards(std::getenv("CUDA_VISIBLE_DEVICES")));
    *identity.mutable_hardware() = nibble::HardwareOf(cards);
    if (arguments.slots == 0) identity.set_slots(static_cast<int32_t>(cards.size()));
    NIBBLE_RETURN_IF_ERROR(nibble::CheckSlots(std::max(identity.slots(), 1), cards));
    for (const nibble::Card& card : cards) options.cards.push_back(card.id);
  }
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
  for (const auto& [path, text] :
       {std::pair{&arguments.root_certificates, &options.security.root_certificates},
        std::pair{&arguments.certificate, &options.security.certificate},
        std::pair{&arguments.private_key, &options.security.private_key}}) {
    NIBBLE_ASSIGN_OR_RETURN(*text, ReadSecret(*path));
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
  options.logs.file_bytes = arguments.log_mib << 20;
  options.http = {.listen = arguments.http,
                  .insecure = arguments.insecure,
                  .or_free_port = !arguments.http_given};
  if (arguments.precision_series == "all") options.figures.precision_layers = 0;
  options.figures.peak_flops = arguments.peak_flops;
  options.log = Log;
  return options;
}

int RunDaemon(const Arguments& arguments) {
  absl::StatusOr<nibble::Daemon::Options> options = OptionsOf(arguments);
  if (!options.ok()) {
    Log(absl::StrCat(
        arguments.device == "cpu" ? "" : absl::StrCat("--device ", arguments.device, ": "),
        options.status().message()));
    return kUsage;
  }
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
      if (arguments.insecure) Log("callers are not authenticated (--insecure)");
      if (!arguments.http_given && (*daemon)->http_address() != arguments.http) {
        Log(absl::StrCat(arguments.http, " is in use; another port was chosen"));
      }
      status = (*daemon)->Run(stop_requested);
    }
  }
  if (status.ok()) return 0;
  Log(std::string(status.message()));
  return absl::IsAborted(status) ? kSuperseded : kError;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  nibble::CommandLine app("The daemon of one node: runs ranks and stores checkpoints",
                          "nibble-worker");
  app.Add("--coordinator", arguments.coordinator, "HOST:PORT").Required();
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
  app.Add("--label", arguments.labels, "KEY=VALUE, for placement; may be repeated");
  app.Add("--trainer", arguments.trainer, "Path of nibble-trainer; default: beside this program");
  app.Add("--exporter", arguments.exporter, "Path of nibble-export; default: beside this program");
  app.Add("--tls-root", arguments.root_certificates,
          "PEM file of the authority that signs the coordinator's certificate; without it no TLS");
  app.Add("--tls-certificate", arguments.certificate, "PEM file of this worker's certificate");
  app.Add("--tls-key", arguments.private_key, "PEM file of this worker's private key");
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
  app.Add("--log-mib", arguments.log_mib, "Size of a log file, MiB; each rank keeps at most two")
      .ShowDefault()
      .InRange(1, 1 << 20);
  app.Add("--http", arguments.http,
          "HOST:PORT of plain HTTP for metrics and probes; port 0 picks a free one, and so does "
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
  return RunDaemon(arguments);
}
