#include "client/cluster/cluster_command.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cluster/cluster_report.h"
#include "client/cluster/find_programs.h"
#include "client/cluster/local_cluster.h"
#include "client/local/exit_code.h"
#include "client/local/finish.h"
#include "client/local/number_check.h"
#include "client/local/output_format.h"

namespace nibble {
namespace {

struct Flags {
  std::string state;
  LocalCluster::Wish wish;
  ClusterPrograms programs;
  std::vector<std::string> coordinator_flags, worker_flags;
  double patience_seconds = 60;
  double grace_seconds = 60;
  bool purge = false;
  bool keep = false;
  std::string print = "table";
};

void Chat(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

int Fail(const char* verb, const absl::Status& status) {
  Chat(absl::StrCat("nibble cluster ", verb, ": ", std::string(status.message())));
  return absl::IsInvalidArgument(status) ? kExitUsage : ExitCodeOf(status);
}

std::string DirectoryOf(const Flags& flags) {
  const std::string said = flags.state.empty() ? DefaultClusterDirectory() : flags.state;
  return std::filesystem::absolute(said).lexically_normal().string();
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// What to type next; a cluster that is not where it is looked for by itself has to be named.
std::string Hints(const std::string& directory, const std::string& address) {
  const bool usual = directory == DefaultClusterDirectory();
  const std::string state = usual ? "" : absl::StrCat(" --state ", directory);
  return absl::StrCat(usual ? "" : absl::StrCat("  export NIBBLE_SERVER=", address, "\n"),
                      "  nibble job submit examples/quickstart.yaml --watch\n",
                      "  nibble cluster status", state, "\n  nibble cluster down", state);
}

int Up(const Flags& flags) {
  const absl::StatusOr<ClusterPrograms> programs = FindPrograms(flags.programs, SelfPath());
  if (!programs.ok()) return Fail("up", programs.status());
  const std::string directory = DirectoryOf(flags);
  LocalCluster cluster({.directory = directory,
                        .programs = *programs,
                        .coordinator_flags = flags.coordinator_flags,
                        .worker_flags = flags.worker_flags,
                        .patience = Milliseconds(flags.patience_seconds),
                        .say = Chat});
  const absl::StatusOr<LocalCluster::Before> before = cluster.Up(flags.wish);
  if (!before.ok()) return Fail("up", before.status());
  const absl::StatusOr<std::string> address = cluster.Address();
  if (!address.ok()) return Fail("up", address.status());
  std::printf("%s\n", address->c_str());
  if (*before == LocalCluster::Before::kAll) {
    Chat(absl::StrCat("the cluster in ", directory, " was up already"));
    return kExitDone;
  }
  Chat(absl::StrCat("the cluster is up; what it stores is in ", directory, "\n",
                    Hints(directory, *address)));
  return kExitDone;
}

int Down(const Flags& flags) {
  const std::string directory = DirectoryOf(flags);
  LocalCluster cluster({.directory = directory, .say = Chat});
  // Whoever has none has none to end, and none is to be made.
  const absl::StatusOr<LocalCluster::Status> there = cluster.Look();
  if (absl::IsNotFound(there.status())) {
    Chat(std::string(there.status().message()));
    return kExitDone;
  }
  absl::Status status = cluster.Down(Milliseconds(flags.grace_seconds));
  if (status.ok() && flags.purge) status = cluster.Purge();
  if (!status.ok()) return Fail("down", status);
  Chat(flags.purge
           ? absl::StrCat("the cluster is down, and what it stored in ", directory, " is gone")
           : absl::StrCat("the cluster is down; its jobs are in ", directory,
                          " and go on after the next up"));
  return kExitDone;
}

int ShowStatus(const Flags& flags) {
  const LocalCluster cluster({.directory = DirectoryOf(flags)});
  const absl::StatusOr<LocalCluster::Status> status = cluster.Look();
  if (!status.ok()) return Fail("status", status.status());
  const int64_t now = absl::ToUnixMillis(absl::Now());
  return Finish("cluster status", ForPrograms(flags.print)
                                      ? InFormat(flags.print, ClusterJson(*status, now))
                                      : ClusterTable(*status, now));
}

void AddUp(CLI::App& cluster, const std::shared_ptr<Flags>& flags, int& exit_code) {
  CLI::App* up =
      cluster.add_subcommand("up", "Start what does not run, and wait until it is ready");
  up->add_option("--workers", flags->wish.workers,
                 "worker daemons; where not given those it had, 2 at first")
      ->check(WholeNumber(1, 64));
  up->add_option("--slots", flags->wish.slots,
                 "ranks that each worker runs at a time; likewise, 1 at first")
      ->check(WholeNumber(1, 1024));
  up->add_option("--device", flags->wish.device, "what a slot is; likewise, cpu at first")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  up->add_option("--port", flags->wish.port,
                 "of the coordinator on 127.0.0.1; 0: the one it had, or a free one")
      ->check(WholeNumber(0, 65535));
  up->add_option("--coordinator-program", flags->programs.coordinator,
                 "path of nibble-coordinator, where it is not beside this program");
  up->add_option("--worker-program", flags->programs.worker, "likewise, of nibble-worker");
  up->add_option("--trainer-program", flags->programs.trainer, "likewise, of nibble-trainer");
  up->add_option("--coordinator-flag", flags->coordinator_flags,
                 "passed on, such as --coordinator-flag=--lease-ms=5000; any number of times")
      ->allow_extra_args(false);
  up->add_option_function<std::vector<std::string>>(
        "--notify-allow",
        [flags](const std::vector<std::string>& hosts) {
          for (const std::string& host : hosts) {
            flags->coordinator_flags.push_back(absl::StrCat("--notify-allow=", host));
          }
        },
        "HOST[:PORT] that jobs may have their events posted to; any number of times")
      ->allow_extra_args(false);
  up->add_option("--worker-flag", flags->worker_flags, "likewise, to every worker")
      ->allow_extra_args(false);
  up->add_option("--patience", flags->patience_seconds,
                 "seconds until a process is ready, after which it is given up")
      ->check(RealNumber(1.0, 3600.0))
      ->capture_default_str();
  up->footer("Example: nibble cluster up --workers 2 --slots 1");
  up->callback([flags, &exit_code] { exit_code = Up(*flags); });
}

}  // namespace

void AddClusterCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* cluster = app.add_subcommand("cluster", "A whole cluster on this machine");
  cluster->require_subcommand(1);
  AddUp(*cluster, flags, exit_code);

  CLI::App* down = cluster->add_subcommand(
      "down", "Let jobs store where they are, and end every process of the cluster");
  CLI::Option* const keep =
      down->add_flag("--keep", flags->keep, "Keep jobs, checkpoints and logs (the default)");
  down->add_flag("--purge", flags->purge, "Remove them")->excludes(keep);
  down->add_option("--grace", flags->grace_seconds,
                   "seconds for jobs to store where they are, after which processes are killed")
      ->check(RealNumber(0.0, 3600.0))
      ->capture_default_str();
  down->callback([flags, &exit_code] { exit_code = Down(*flags); });

  CLI::App* status = cluster->add_subcommand("status", "Processes, workers, and jobs by state");
  AddOutputOption(status, flags->print);
  status->callback([flags, &exit_code] { exit_code = ShowStatus(*flags); });

  for (CLI::App* verb : cluster->get_subcommands({})) {
    verb->add_option("--state", flags->state,
                     "directory of the cluster (${NIBBLE_HOME:-$HOME/.nibble}/cluster)");
  }
}

}  // namespace nibble
