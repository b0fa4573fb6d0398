#include "client/cluster/cluster_command.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cluster/cluster_report.h"
#include "client/cluster/find_programs.h"
#include "client/cluster/identity_files.h"
#include "client/cluster/local_cluster.h"
#include "client/remote/client_access.h"
#include "client/remote/coordinator_client.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "common/command_line/command_line.h"
#include "common/identity/expiry.h"
#include "common/text/text.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

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

void Say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

int Fail(const char* verb, const absl::Status& status) {
  Tell(absl::StrCat("cluster ", verb), std::string(status.message()));
  return absl::IsInvalidArgument(status) ? kExitUsage : ExitCodeOf(status);
}

std::string DirectoryOf(const Flags& flags) {
  const std::string directory = flags.state.empty() ? DefaultClusterDirectory() : flags.state;
  return fs::absolute(directory).lexically_normal().string();
}

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

// The commands to try next; they name the cluster unless it is in the default directory.
std::string Hints(const std::string& directory, const std::string& address) {
  const bool is_default = directory == DefaultClusterDirectory();
  const std::string state = is_default ? "" : absl::StrCat(" --state ", directory);
  return absl::StrCat(is_default ? "" : absl::StrCat("  export NIBBLE_SERVER=", address, "\n"),
                      "  nibble job submit examples/quickstart.yaml --watch\n",
                      "  nibble cluster status", state, "\n  nibble cluster down", state);
}

// Where to look at the cluster.
std::string DashboardHints(const std::string& directory, const LocalCluster& cluster) {
  const absl::StatusOr<LocalCluster::Status> status = cluster.GetStatus();
  if (!status.ok()) return std::string(status.status().message());
  std::string text;
  for (const auto& [role, url] : status->urls) absl::StrAppend(&text, "  ", role, ": ", url, "\n");
  if (!status->urls.contains(kGrafanaRole)) {
    absl::StrAppend(
        &text, "  grafana: not started; PATH has neither 'grafana' nor 'grafana-server'. ",
        "Its dashboards are in ", directory, "/grafana/dashboards, their provisioning in ",
        directory, "/grafana/provisioning\n");
  }
  return absl::StrCat("dashboards:\n", text, "  what they show: docs/guide/dashboards.md");
}

int Up(const Flags& flags) {
  const absl::StatusOr<ClusterPrograms> programs = FindPrograms(flags.programs, SelfPath());
  if (!programs.ok()) return Fail("up", programs.status());
  absl::StatusOr<DashboardPrograms> dashboards = DashboardPrograms();
  if (flags.wish.dashboards) {
    const char* const search_path = getenv("PATH");
    dashboards = FindDashboardPrograms(search_path == nullptr ? "" : search_path);
    if (!dashboards.ok()) return Fail("up", dashboards.status());
  }
  const std::string directory = DirectoryOf(flags);
  LocalCluster cluster({.directory = directory,
                        .programs = *programs,
                        .dashboards = *std::move(dashboards),
                        .coordinator_flags = flags.coordinator_flags,
                        .worker_flags = flags.worker_flags,
                        .patience = Milliseconds(flags.patience_seconds),
                        .say = Say});
  const absl::StatusOr<LocalCluster::Before> before = cluster.Up(flags.wish);
  if (!before.ok()) return Fail("up", before.status());
  const absl::StatusOr<std::string> address = cluster.Address();
  if (!address.ok()) return Fail("up", address.status());
  std::printf("%s\n", address->c_str());
  if (flags.wish.dashboards) Say(DashboardHints(directory, cluster));
  if (*before == LocalCluster::Before::kAll) {
    Say(absl::StrCat("the cluster in ", directory, " was already up"));
    return kExitDone;
  }
  Say(absl::StrCat("the cluster is up; its data is in ", directory, "\n",
                   Hints(directory, *address)));
  return kExitDone;
}

int Down(const Flags& flags) {
  const std::string directory = DirectoryOf(flags);
  LocalCluster cluster({.directory = directory, .say = Say});
  // Down would create the directory of a cluster that does not exist.
  const absl::Status exists = cluster.GetStatus().status();
  if (absl::IsNotFound(exists)) {
    Say(std::string(exists.message()));
    return kExitDone;
  }
  absl::Status status = cluster.Down(Milliseconds(flags.grace_seconds));
  if (status.ok() && flags.purge) status = cluster.Purge();
  if (!status.ok()) return Fail("down", status);
  Say(flags.purge ? absl::StrCat("the cluster is down, and its data in ", directory, " was removed")
                  : absl::StrCat("the cluster is down; its jobs are stored in ", directory,
                                 " and resume after the next 'nibble cluster up'"));
  return kExitDone;
}

int ShowStatus(const Flags& flags) {
  const LocalCluster cluster({.directory = DirectoryOf(flags)});
  const absl::StatusOr<LocalCluster::Status> status = cluster.GetStatus();
  if (!status.ok()) return Fail("status", status.status());
  const int64_t now = absl::ToUnixMillis(absl::Now());
  return Finish("cluster status", flags.print,
                Reply{.text = ClusterTable(*status, now), .json = ClusterJson(*status, now)});
}

void AddUp(Command cluster, const std::shared_ptr<Flags>& flags, int& exit_code) {
  Command up = cluster.AddSubcommand(
      "up", "Start the cluster's missing processes, and wait until they are ready");
  up.Add("--workers", flags->wish.workers,
         "number of workers; default: as before, for a new cluster 2, or 1 with cards")
      .WholeNumber(1, 64);
  up.Add("--slots", flags->wish.slots,
         "slots per worker, one per rank; default: as before, 1 for a new cluster")
      .WholeNumber(1, 1024);
  up.Add("--device", flags->wish.device,
         "device of a slot; default: as before, cpu for a new cluster")
      .OneOf({"cpu", "cuda", "gpu"});
  up.Add("--port", flags->wish.port,
         "port of the coordinator on 127.0.0.1; 0: as before, or a free one")
      .WholeNumber(0, 65535);
  up.Add("--coordinator-program", flags->programs.coordinator,
         "path of nibble-coordinator; default: beside this program");
  up.Add("--worker-program", flags->programs.worker,
         "path of nibble-worker; default: beside this program");
  up.Add("--trainer-program", flags->programs.trainer,
         "path of nibble-trainer; default: beside this program");
  up.Add("--coordinator-flag", flags->coordinator_flags,
         "a flag for the coordinator, such as --coordinator-flag=--lease-ms=5000; repeatable")
      .OneValueEach();
  up.AddCall(
        "--notify-allow",
        [flags](const std::vector<std::string>& hosts) {
          for (const std::string& host : hosts) {
            flags->coordinator_flags.push_back(absl::StrCat("--notify-allow=", host));
          }
        },
        "HOST[:PORT] that jobs may post their events to; repeatable")
      .OneValueEach();
  up.Add("--worker-flag", flags->worker_flags, "a flag for every worker; repeatable")
      .OneValueEach();
  up.AddFlag("--dashboards", flags->wish.dashboards,
             "also start Prometheus with rules and alerts for the cluster, and Grafana with its "
             "dashboards if it is installed");
  up.AddFlag("--secure", flags->wish.secure,
             "TLS between all processes, and tokens for callers; 'nibble' finds its own in the "
             "cluster's directory");
  up.Add("--patience", flags->patience_seconds, "seconds to wait until a process is ready")
      .RealNumber(1.0, 3600.0)
      .ShowDefault();
  up.Footer("Example: nibble cluster up --workers 2 --slots 1");
  up.OnParsed([flags, &exit_code] { exit_code = Up(*flags); });
}

struct CertsFlags {
  std::string directory;
  IdentityWish wish = {.hosts = {"localhost", "127.0.0.1", "::1"}};
  std::vector<std::string> hosts;
};

// Warns of certificates that expire soon, the authority's among them, and of those that would
// outlive the authority: they end with it.
void WarnOfExpiry(const std::string& directory) {
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  const std::vector<CertificateExpiry> expiries = ReadIdentityExpiries(directory);
  const auto authority =
      std::find_if(expiries.begin(), expiries.end(),
                   [](const CertificateExpiry& one) { return one.certificate == "ca"; });
  for (const CertificateExpiry& one : expiries) {
    const bool outlives = authority != expiries.end() && one.unix_s > authority->unix_s;
    if (ExpiresSoon(one, now)) Say(absl::StrCat("warning: ", ExpiryText(one, now)));
    if (!outlives) continue;
    Say(absl::StrCat("warning: '", one.path,
                     "' is valid for longer than its authority: ", ExpiryText(*authority, now)));
  }
}

int MakeCerts(const CertsFlags& flags) {
  IdentityWish wish = flags.wish;
  wish.hosts.insert(wish.hosts.end(), flags.hosts.begin(), flags.hosts.end());
  if (wish.clients.empty()) wish.clients = {kClientIdentity};
  const absl::StatusOr<std::vector<std::string>> issued =
      IssueIdentityFiles(flags.directory, wish, absl::ToUnixSeconds(absl::Now()));
  if (!issued.ok()) return Fail("certs", issued.status());
  for (const std::string& name : *issued) {
    std::printf("%s/%s.pem\n", flags.directory.c_str(), name.c_str());
  }
  WarnOfExpiry(flags.directory);
  Say(absl::StrCat(
      "keys are in NAME-key.pem; the authority is ", flags.directory,
      "/ca.pem. Keep ca-key.pem away from the cluster: whoever has it can be anybody"));
  return kExitDone;
}

void AddCerts(Command cluster, int& exit_code) {
  const auto flags = std::make_shared<CertsFlags>();
  Command certs = cluster.AddSubcommand(
      "certs", "Issue certificates for development: an authority, a coordinator, workers, clients");
  certs.Add("DIR", flags->directory, "directory of the files; its authority is used again")
      .Required();
  certs.Add("--worker", flags->wish.workers, "name of a worker; repeatable").OneValueEach();
  certs.Add("--client", flags->wish.clients, "name of a client; repeatable; default: client")
      .OneValueEach();
  certs
      .Add("--host", flags->hosts,
           "host name or IP address to add to the certificates, for foreign clients; repeatable")
      .OneValueEach();
  certs.Add("--days", flags->wish.days, "validity").WholeNumber(1, 3650).ShowDefault();
  certs.Footer("Example: nibble cluster certs certs --worker node-1 --worker node-2");
  certs.OnParsed([flags, &exit_code] { exit_code = MakeCerts(*flags); });
}

}  // namespace

void AddClusterCommand(Command app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  Command cluster = app.AddSubcommand("cluster", "A cluster on this machine");
  cluster.RequireSubcommand();
  AddUp(cluster, flags, exit_code);

  Command down =
      cluster.AddSubcommand("down", "Checkpoint the jobs, and end every process of the cluster");
  const Option keep =
      down.AddFlag("--keep", flags->keep, "keep jobs, checkpoints and logs (the default)");
  down.AddFlag("--purge", flags->purge, "remove jobs, checkpoints and logs").Excludes(keep);
  down.Add("--grace", flags->grace_seconds,
           "seconds for jobs to take a checkpoint, after which processes are killed")
      .RealNumber(0.0, 3600.0)
      .ShowDefault();
  down.OnParsed([flags, &exit_code] { exit_code = Down(*flags); });

  Command status = cluster.AddSubcommand(
      "status", "Show the processes, the workers, and the number of jobs by state");
  AddOutputOption(status, flags->print);
  status.OnParsed([flags, &exit_code] { exit_code = ShowStatus(*flags); });

  for (Command verb : cluster.Subcommands()) {
    verb.Add("--state", flags->state,
             "directory of the cluster; default: ${NIBBLE_HOME:-$HOME/.nibble}/cluster");
  }
  AddCerts(cluster, exit_code);
}

}  // namespace nibble
