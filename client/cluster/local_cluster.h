// A cluster of real processes on this machine's loopback: a coordinator and its workers, detached,
// so that they outlive the process that started them. Their record is on disk (cluster_files.h) and
// is read by every call, so that any process may inspect or change the cluster.
//
// Ranks end with their worker: when Down returns, no process of the cluster runs.
//
// Ownership: does not own the processes. Thread-safety: all methods; changes are serialised, also
// among processes.
#ifndef NIBBLE_CLIENT_CLUSTER_LOCAL_CLUSTER_H_
#define NIBBLE_CLIENT_CLUSTER_LOCAL_CLUSTER_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cluster/cluster_files.h"
#include "client/cluster/local_dashboards.h"
#include "common/files/file_lock.h"
#include "common/identity/expiry.h"
#include "common/process/spawn.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// Paths of the programs of a cluster.
struct ClusterPrograms {
  std::string coordinator;
  std::string worker;
  std::string trainer;
};

class LocalCluster {
 public:
  struct Options {
    std::string directory;  // absolute; created if needed
    ClusterPrograms programs;
    DashboardPrograms dashboards;
    std::vector<std::string> coordinator_flags;      // after those that are always given
    std::vector<std::string> worker_flags;           // as above
    std::map<std::string, std::string> environment;  // of all processes; overrides this one's
    // The address at which a worker reaches the coordinator that listens at `address`; null: the
    // same.
    std::function<std::string(const std::string& role, const std::string& address)> reach;
    std::chrono::milliseconds patience{60'000};   // until a process is ready
    std::function<void(const std::string&)> say;  // a line for people; may be null
  };
  // Requested changes; unset fields keep their values.
  struct Wish {
    std::optional<int> workers, slots, port;
    std::optional<std::string> device;
    bool dashboards = false;  // also Prometheus and, if its program is known, Grafana
    // TLS between all processes, and tokens for callers; a cluster keeps that until it is purged.
    bool secure = false;
  };
  enum class Before : char { kNothing, kAll, kSome };  // which of its processes ran already

  explicit LocalCluster(Options options);

  // Starts the processes that do not run, and returns when the coordinator serves and every worker
  // is present. Workers can be added to a running cluster; any other change of its shape is
  // FailedPrecondition, and so is a port on which another program listens. Internal if a process
  // ends, DeadlineExceeded if it is not ready in time, each with the end of its log; the other
  // processes keep running. Dashboards beside a coordinator that was started without them are
  // FailedPrecondition.
  absl::StatusOr<Before> Up(const Wish& wish);
  // Drains the workers, so that jobs are checkpointed within the grace and resume after the next
  // Up; then ends the workers and the coordinator, by force after the grace. OK if nothing runs.
  absl::Status Down(std::chrono::milliseconds grace);
  // After Down: removes everything that the cluster stored.
  absl::Status Purge();

  struct ProcessStatus {
    std::string role;
    bool alive = false;
    ClusterProcess process;
  };
  struct Status {
    std::string address;  // empty: the cluster is down
    bool serves = false;
    std::vector<ProcessStatus> processes;
    std::vector<v1::Worker> workers;  // as the coordinator sees them
    std::map<v1::JobState, int64_t> jobs;
    std::map<std::string, std::string> urls;      // of Prometheus and Grafana if they run, by role
    std::vector<CertificateExpiry> certificates;  // of a secure cluster, by name
  };
  // NotFound if there never was a cluster.
  absl::StatusOr<Status> GetStatus() const;

  // Single processes, for tests. Start does not wait until the process is ready; Signal returns
  // NotFound if it does not run.
  absl::Status Start(const std::string& role);
  absl::Status Signal(const std::string& role, int signal);
  absl::Status AwaitEnd(const std::string& role, std::chrono::milliseconds patience);
  // Ready as in Up: the coordinator serves, or this process of the worker is present.
  absl::Status AwaitReady(const std::string& role);

  absl::StatusOr<std::string> Address() const { return ReadClusterAddress(options_.directory); }
  const ClusterPaths& paths() const { return paths_; }

 private:
  // The reason of the drains by Down. Up uncordons the workers that have it, and no others.
  static constexpr char kDownReason[] = "the cluster goes down";
  static constexpr std::chrono::milliseconds kPollPause{50};

  static bool IsWorker(const std::string& role) {
    return role != kCoordinatorRole && !IsDashboardRole(role);
  }
  void Say(const std::string& line) const;
  bool IsSecure() const;
  // Makes missing certificates of a secure cluster. FailedPrecondition: processes of a cluster that
  // is not secure run.
  absl::Status PrepareIdentity(const Wish& wish, const ClusterRecord& record) const;
  CoordinatorClient Connect(const std::string& address) const;
  static absl::StatusOr<std::vector<v1::Worker>> ListWorkers(const CoordinatorClient& client);
  // Serialises changes of the cluster, also among processes. Waits for the lock.
  absl::StatusOr<FileLock> LockDirectory() const;
  absl::StatusOr<ClusterRecord> ReadRecord() const;
  absl::Status StartLocked(const std::string& role, ClusterRecord& record);
  DetachedProgram ProgramOf(const std::string& role, const ClusterRecord& record) const;
  std::vector<std::string> Arguments(const std::string& role, const ClusterRecord& record) const;
  // Starts those that do not run, and waits until they listen. Returns the number started.
  absl::StatusOr<size_t> StartDashboards(ClusterRecord& record);
  absl::Status AwaitListening(const std::string& role, const ClusterRecord& record) const;
  absl::Status AwaitReady(const std::string& role, const ClusterRecord& record) const;
  bool IsReady(const std::string& role, const ClusterRecord& record) const;
  // The error for a process that is not ready, with the end of its log.
  absl::Status NotReady(absl::StatusCode code, const std::string& role,
                        const std::string& what) const;
  // Drains open workers of this cluster that are not among `roles`: it was larger, and ended
  // without Down. They get no work before their leases expire, and their absence is no alert.
  absl::Status DrainMissing(const std::string& address,
                            const std::vector<std::string>& roles) const;
  // Uncordons those of `roles` that Down drained, but none that a user drained.
  absl::Status OpenWorkers(const std::string& address, const std::vector<std::string>& roles) const;
  void DrainWorkers(const std::string& address, std::chrono::milliseconds grace) const;
  absl::Status EndRole(const std::string& role, ClusterRecord& record,
                       std::chrono::milliseconds grace) const;

  const Options options_;
  const ClusterPaths paths_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_LOCAL_CLUSTER_H_
