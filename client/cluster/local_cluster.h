// A whole cluster of real processes on this machine's loopback: a coordinator and its workers,
// detached, so that they outlive whoever started them. What runs and what it is made of is on disk
// (cluster_files.h); everything here reads it anew, so that any process may look or change.
//
// A worker takes ranks with it when it ends; nothing of a cluster is left once Down returns.
//
// Ownership: owns nothing that runs. Thread-safety: all methods; changes go one after the other,
// also over several processes.
#ifndef NIBBLE_CLIENT_CLUSTER_LOCAL_CLUSTER_H_
#define NIBBLE_CLIENT_CLUSTER_LOCAL_CLUSTER_H_

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cluster/cluster_files.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

// Paths of what a cluster consists of.
struct ClusterPrograms {
  std::string coordinator;
  std::string worker;
  std::string trainer;
};

class LocalCluster {
 public:
  struct Options {
    std::string directory;  // absolute; made where it is not
    ClusterPrograms programs;
    std::vector<std::string> coordinator_flags;      // behind those that are always given
    std::vector<std::string> worker_flags;           // likewise
    std::map<std::string, std::string> environment;  // of all processes, over this one's
    // Where a worker finds the coordinator that listens at `address`; null: there.
    std::function<std::string(const std::string& role, const std::string& address)> reach;
    std::chrono::milliseconds patience{60'000};   // until a process is ready
    std::function<void(const std::string&)> say;  // a line for people; may be null
  };
  // What is wanted other than it is.
  struct Wish {
    std::optional<int> workers, slots, port;
    std::optional<std::string> device;
  };
  enum class Before : char { kNothing, kAll, kSome };  // of its processes ran

  explicit LocalCluster(Options options);

  // Starts what does not run, and returns once the coordinator serves and every worker is present.
  // FailedPrecondition where what runs is of another shape (more workers are added); Unavailable,
  // with the end of its log, where a process ends or is not ready in time: what runs is left.
  absl::StatusOr<Before> Up(const Wish& wish);
  // What runs moves off through checkpoints, within the grace, and goes on after the next Up. Then
  // the workers and the coordinator end, by force after the grace. OK where nothing runs.
  absl::Status Down(std::chrono::milliseconds grace);
  // After Down: everything that was stored is gone.
  absl::Status Purge();

  struct ProcessStatus {
    std::string role;
    bool alive = false;
    ClusterProcess process;
  };
  struct Status {
    std::string address;  // empty: not up
    bool serves = false;
    std::vector<ProcessStatus> processes;
    std::vector<v1::Worker> workers;  // as the coordinator sees them
    std::map<v1::JobState, int64_t> jobs;
  };
  // NotFound where there never was a cluster.
  absl::StatusOr<Status> Look() const;

  // Single processes, for tests. Start does not wait until it is ready; a signal goes to one that
  // runs, else NotFound.
  absl::Status Start(const std::string& role);
  absl::Status Signal(const std::string& role, int signal);
  absl::Status AwaitEnd(const std::string& role, std::chrono::milliseconds patience);
  // Ready as Up says: the coordinator serves, or this life of the worker is present.
  absl::Status AwaitReady(const std::string& role);

  absl::StatusOr<std::string> Address() const { return ReadClusterAddress(options_.directory); }
  const ClusterPaths& paths() const { return paths_; }

 private:
  // Why Down has drained a worker; Up takes back those drains and no others.
  static constexpr char kDownReason[] = "the cluster goes down";
  static constexpr std::chrono::milliseconds kPollPause{50};  // for what nobody tells of
  static constexpr std::chrono::milliseconds kServesPatience{500};

  static bool IsWorker(const std::string& role) { return role != kCoordinatorRole; }
  void Say(const std::string& line) const;
  absl::StatusOr<ClusterLock> LockDirectory() const;
  absl::StatusOr<ClusterRecord> ReadRecord() const;
  absl::Status StartLocked(const std::string& role, ClusterRecord& record);
  std::vector<std::string> Arguments(const std::string& role, const ClusterShape& shape) const;
  absl::Status AwaitReady(const std::string& role, const ClusterRecord& record) const;
  bool IsReady(const std::string& role, const ClusterRecord& record) const;
  // The role's process has ended or is not ready in time: with the end of its log.
  absl::Status NotReady(const std::string& role, const std::string& what) const;
  absl::Status OpenWorkers(const std::string& address) const;
  void DrainWorkers(const std::string& address, std::chrono::milliseconds grace) const;
  absl::Status EndRole(const std::string& role, ClusterRecord& record,
                       std::chrono::milliseconds grace) const;

  const Options options_;
  const ClusterPaths paths_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_LOCAL_CLUSTER_H_
