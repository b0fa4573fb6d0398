// Prometheus and Grafana beside a cluster on this machine: their programs, their files and how they
// are started. Files are those of deploy/, below the cluster's directory:
//
//   prometheus/          prometheus.yml with the coordinator's address, rules/, data/
//   grafana/             provisioning/, dashboards/, data/
//
// Ownership: values. Thread-safety: functions of the disk.
#ifndef NIBBLE_CLIENT_CLUSTER_LOCAL_DASHBOARDS_H_
#define NIBBLE_CLIENT_CLUSTER_LOCAL_DASHBOARDS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cluster/cluster_files.h"
#include "common/process/spawn.h"

namespace nibble {

inline constexpr char kPrometheusRole[] = "prometheus";
inline constexpr char kGrafanaRole[] = "grafana";

bool IsDashboardRole(absl::string_view role);

// Paths.
struct DashboardPrograms {
  std::string prometheus;
  std::string grafana;  // `grafana` or `grafana-server`; empty: neither is installed
};

// Searches the directories of `search_path`, which are separated by colons. NotFound, naming
// Debian's package, if there is no Prometheus.
absl::StatusOr<DashboardPrograms> FindDashboardPrograms(absl::string_view search_path);

int DashboardPort(absl::string_view role, const DashboardPorts& ports);

// Chooses ports for the dashboards and for the coordinator's metrics, unless they run already.
// FailedPrecondition: the coordinator runs, and the port of its metrics is not known.
absl::Status ChooseDashboardPorts(ClusterRecord& record);

// Writes the files of deploy/ for these ports; replaces earlier ones. `alert_token`: the file with
// which Prometheus may send alerts to the coordinator; empty: none is needed.
absl::Status WriteDashboardFiles(const ClusterPaths& paths, const DashboardPorts& ports,
                                 const std::string& alert_token);

// How the role is started, without its log. The files exist.
DetachedProgram DashboardProgram(const std::string& role, const DashboardPrograms& programs,
                                 const ClusterPaths& paths, const DashboardPorts& ports);

// "http://127.0.0.1:PORT" of the role.
std::string DashboardUrl(absl::string_view role, const DashboardPorts& ports);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_LOCAL_DASHBOARDS_H_
