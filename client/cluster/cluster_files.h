// The files of a cluster on one machine, below one directory:
//
//   address              one line, host:port of the coordinator; exists while the cluster is up
//   cluster.json         the shape of the cluster, and its processes
//   LOCK                 locked (FileLock) while the cluster is changed
//   log/ROLE.log         the output of each process
//   coordinator/         the coordinator's store
//   worker-N/            each worker's data
//   identity/            certificates and the first token, if the cluster is secure
//
// Roles are "coordinator" and "worker-1", "worker-2", …; with dashboards also "prometheus" and
// "grafana" (local_dashboards.h).
//
// Ownership: values. Thread-safety: functions of the disk.
#ifndef NIBBLE_CLIENT_CLUSTER_CLUSTER_FILES_H_
#define NIBBLE_CLIENT_CLUSTER_CLUSTER_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/remote/coordinator_client.h"
#include "common/process/process.h"

namespace nibble {

inline constexpr char kCoordinatorRole[] = "coordinator";

std::string WorkerRole(int number);        // from 1
int WorkerNumber(absl::string_view role);  // 0: not a worker

struct ClusterPaths {
  std::string directory;  // absolute

  std::string Address() const { return ClusterAddressPath(directory); }
  std::string Record() const { return directory + "/cluster.json"; }
  std::string Lock() const { return directory + "/LOCK"; }
  std::string Logs() const { return directory + "/log"; }
  std::string Log(const std::string& role) const { return Logs() + "/" + role + ".log"; }
  std::string Data(const std::string& role) const { return directory + "/" + role; }
};

// The configuration of the cluster.
struct ClusterShape {
  int workers = 2;
  int slots = 1;  // of each worker
  std::string device = "cpu";
  int port = 0;  // of the coordinator; 0: not chosen yet

  friend bool operator==(const ClusterShape&, const ClusterShape&) = default;
};

// Ports on 127.0.0.1; 0: not chosen yet.
struct DashboardPorts {
  int coordinator_http = 0;  // of the coordinator's metrics; 0: the coordinator's default
  int prometheus = 0;
  int grafana = 0;

  friend bool operator==(const DashboardPorts&, const DashboardPorts&) = default;
};

struct ClusterProcess {
  ProcessIdentity identity;
  int64_t started_unix_ms = 0;
  int64_t earlier_incarnation = 0;  // of a worker: that of its previous process; 0: none
};

struct ClusterRecord {
  ClusterShape shape;
  DashboardPorts dashboards;
  std::map<std::string, ClusterProcess> processes;  // by role

  std::vector<std::string> Roles() const;  // coordinator and workers; the coordinator first
  // The process if it runs; null if it was never started or has ended.
  const ClusterProcess* Alive(const std::string& role) const;
  bool AnyAlive() const;
};

// NotFound if there is no cluster; DataLoss, naming the file, if the record is not valid.
absl::StatusOr<ClusterRecord> ReadClusterRecord(const ClusterPaths& paths);
// Durable on return.
absl::Status WriteClusterRecord(const ClusterPaths& paths, const ClusterRecord& record);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_CLUSTER_FILES_H_
