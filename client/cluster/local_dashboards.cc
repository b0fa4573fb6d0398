#include "client/cluster/local_dashboards.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "client/cluster/local_processes.h"
#include "common/files/files.h"
#include "common/files/staged_file.h"
#include "common/status_macros.h"
#include "deploy/files.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr char kConfiguration[] = "prometheus/prometheus.yml";
constexpr char kCoordinator[] = "127.0.0.1:7701";  // in the configuration
constexpr char kAlertTarget[] = "        - targets: [127.0.0.1:7701]\n";

// The first program of these names; empty if there is none.
std::string FindInPath(absl::string_view search_path, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (const absl::string_view directory : absl::StrSplit(search_path, ':', absl::SkipEmpty())) {
      const fs::path program = fs::path(std::string(directory)) / name;
      std::error_code error;
      if (fs::is_regular_file(program, error) && access(program.c_str(), X_OK) == 0) {
        return fs::absolute(program).string();
      }
    }
  }
  return "";
}

// Grafana's own files: beside the program, as its archive has them, or where its packages put them.
std::string GrafanaHome(const std::string& program) {
  std::error_code error;
  const fs::path beside = fs::canonical(program, error).parent_path().parent_path();
  for (const fs::path& home : {beside, fs::path("/usr/share/grafana")}) {
    if (fs::exists(home / "conf" / "defaults.ini", error)) return home.string();
  }
  return "";
}

// The configuration for the coordinator of this cluster.
absl::Status EditConfiguration(const DashboardPorts& ports, const std::string& alert_token,
                               std::string& text) {
  const std::string with_token = absl::StrCat(
      kAlertTarget, "      authorization:\n        credentials_file: '", alert_token, "'\n");
  if (!alert_token.empty() && absl::StrReplaceAll({{kAlertTarget, with_token}}, &text) != 1) {
    return absl::InternalError(absl::StrCat(kConfiguration, ": no target of alerts"));
  }
  const std::string coordinator = absl::StrCat("127.0.0.1:", ports.coordinator_http);
  if (absl::StrReplaceAll({{kCoordinator, coordinator}}, &text) == 2) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(kConfiguration, " does not name ", kCoordinator,
                                          " as the source of targets and the target of alerts"));
}

}  // namespace

bool IsDashboardRole(absl::string_view role) {
  return role == kPrometheusRole || role == kGrafanaRole;
}

absl::StatusOr<DashboardPrograms> FindDashboardPrograms(absl::string_view search_path) {
  DashboardPrograms programs = {
      .prometheus = FindInPath(search_path, {"prometheus"}),
      .grafana = FindInPath(search_path, {"grafana", "grafana-server"}),
  };
  if (!programs.prometheus.empty()) return programs;
  return absl::NotFoundError(
      absl::StrCat("dashboards: there is no program 'prometheus' in PATH (", search_path,
                   "); install Debian's package prometheus: apt-get install prometheus"));
}

absl::Status WriteDashboardFiles(const ClusterPaths& paths, const DashboardPorts& ports,
                                 const std::string& alert_token) {
  for (const DeployFile& file : DeployFiles()) {
    const fs::path path = fs::path(paths.directory) / std::string(file.path);
    NIBBLE_RETURN_IF_ERROR(MakeDirectories(path.parent_path().string()));
    std::string text(file.text);
    if (file.path == kConfiguration) {
      NIBBLE_RETURN_IF_ERROR(EditConfiguration(ports, alert_token, text));
    }
    NIBBLE_RETURN_IF_ERROR(ReplaceFile(path.string(), text));
  }
  return absl::OkStatus();
}

absl::Status ChooseDashboardPorts(ClusterRecord& record) {
  DashboardPorts& ports = record.dashboards;
  const std::pair<const char*, int*> choices[] = {{kCoordinatorRole, &ports.coordinator_http},
                                                  {kPrometheusRole, &ports.prometheus},
                                                  {kGrafanaRole, &ports.grafana}};
  const bool prometheus_runs = record.Alive(kPrometheusRole) != nullptr;
  for (const auto& [role, port] : choices) {
    const bool runs = record.Alive(role) != nullptr;
    if (runs && *port == 0) {
      return absl::FailedPreconditionError(
          "dashboards: the coordinator runs without a known address of its metrics; run 'nibble "
          "cluster down' first, then 'nibble cluster up --dashboards'");
    }
    // A Prometheus that runs knows the coordinator's port.
    if (runs || (*port != 0 && (prometheus_runs || IsPortFree(*port)))) continue;
    NIBBLE_ASSIGN_OR_RETURN(*port, ChooseFreePort());
  }
  return absl::OkStatus();
}

int DashboardPort(absl::string_view role, const DashboardPorts& ports) {
  return role == kPrometheusRole ? ports.prometheus : ports.grafana;
}

std::string DashboardUrl(absl::string_view role, const DashboardPorts& ports) {
  return absl::StrCat("http://127.0.0.1:", DashboardPort(role, ports));
}

DetachedProgram DashboardProgram(const std::string& role, const DashboardPrograms& programs,
                                 const ClusterPaths& paths, const DashboardPorts& ports) {
  const std::string own = paths.Data(role);
  if (role == kPrometheusRole) {
    return {.arguments = {programs.prometheus,
                          absl::StrCat("--config.file=", own, "/prometheus.yml"),
                          absl::StrCat("--storage.tsdb.path=", own, "/data"),
                          absl::StrCat("--web.listen-address=127.0.0.1:", ports.prometheus)}};
  }
  std::vector<std::string> arguments = {programs.grafana};
  if (!absl::EndsWith(programs.grafana, "-server")) arguments.push_back("server");
  const std::string home = GrafanaHome(programs.grafana);
  if (!home.empty()) arguments.push_back("--homepath=" + home);
  return {.arguments = std::move(arguments),
          .environment = {{"GF_PATHS_DATA", own + "/data"},
                          {"GF_PATHS_LOGS", own + "/data/log"},
                          {"GF_PATHS_PLUGINS", own + "/data/plugins"},
                          {"GF_PATHS_PROVISIONING", own + "/provisioning"},
                          {"GF_SERVER_HTTP_ADDR", "127.0.0.1"},
                          {"GF_SERVER_HTTP_PORT", absl::StrCat(ports.grafana)},
                          {"GF_AUTH_ANONYMOUS_ENABLED", "true"},
                          {"GF_ANALYTICS_REPORTING_ENABLED", "false"},
                          {"GF_ANALYTICS_CHECK_FOR_UPDATES", "false"},
                          {"NIBBLE_PROMETHEUS_URL", DashboardUrl(kPrometheusRole, ports)},
                          {"NIBBLE_DASHBOARDS", own + "/dashboards"}}};
}

}  // namespace nibble
