// For tests: a cluster of real processes in its own directory, with short leases; calls to it;
// control of its processes and connections.
//
// Ownership: owns the directory and ends every process. Thread-safety: none, except for the watch.
#ifndef NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_
#define NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cluster/local_cluster.h"
#include "client/remote/rpcs.h"
#include "common/process/process.h"
#include "tests/cluster/job_watch.h"
#include "tests/cluster/tcp_proxy.h"
#include "tests/cluster/tiny_job.h"

namespace nibble {

// The deadline of everything that must happen; far longer than needed.
inline constexpr std::chrono::seconds kPatience(120);

// Polls `condition`; false if it does not become true in kPatience.
template <class Condition>
bool Eventually(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    (void)AwaitAnyEnd({}, std::chrono::milliseconds(20));
  }
  return true;
}

// The programs that the tests depend on.
ClusterPrograms TestPrograms();
std::string NibbleProgram();

// Enters a private mount namespace: mounts are visible only to this process and its children, and
// end with them. Call it before starting threads. False if it is not permitted.
bool EnterOwnMounts();

class ClusterBed {
 public:
  static constexpr std::chrono::milliseconds kLease{1500};

  struct Options {
    int workers = 2;
    int slots = 1;
    bool proxies = false;      // workers connect through a TcpProxy
    bool wall_clocks = false;  // each process has its own, which SetWallClock sets
    // Each worker's data is on its own file system, which SetFull fills. The process must have
    // called EnterOwnMounts.
    bool disks = false;
    std::vector<std::string> coordinator_flags, worker_flags;
  };

  // Starts the cluster and waits until it is ready; a test failure otherwise.
  explicit ClusterBed(const Options& options);
  ~ClusterBed();
  ClusterBed(const ClusterBed&) = delete;
  ClusterBed& operator=(const ClusterBed&) = delete;

  LocalCluster& cluster() { return *cluster_; }
  JobWatch& watch() { return *watch_; }
  const CoordinatorStub& stub() const { return *stub_; }
  const std::string& address() const { return address_; }
  const std::string& root() const { return root_; }
  std::string corpus() const { return root_ + "/corpus.txt"; }
  TcpProxy& proxy(const std::string& role) { return *proxies_.at(role); }

  // Calls the coordinator; a mutation without a request id gets a new one. While the coordinator is
  // unavailable the same request is retried.
  template <class Request, class Response>
  absl::Status Call(const Rpc<Request, Response>& rpc, Request request, Response* response) {
    if constexpr (requires { request.set_request_id(""); }) {
      if (request.request_id().empty()) request.set_request_id(NewId());
    }
    const auto deadline = std::chrono::system_clock::now() + kPatience;
    while (true) {
      const absl::Status status =
          stub_->Call(rpc, request, response, {.waits_for_ready = true, .deadline = deadline});
      if (!absl::IsUnavailable(status)) return status;
      (void)AwaitAnyEnd({}, std::chrono::milliseconds(20));
    }
  }
  std::string NewId() { return "request-" + std::to_string(++ids_); }

  // Returns the id, or fails the test.
  std::string Submit(const TinyJob& job, const v1::JobScheduling& scheduling = {});
  std::string SubmitSpec(const std::string& yaml, const v1::JobScheduling& scheduling = {});
  v1::Job Describe(const std::string& job);
  std::vector<v1::JobEvent> Events(const std::string& job);
  std::vector<v1::RecipeRevision> Revisions(const std::string& job);
  std::vector<v1::Checkpoint> Checkpoints(const std::string& job);
  // Waits; a test failure with Story() on a timeout.
  void ExpectState(const std::string& job, v1::JobState state);
  void ExpectStep(const std::string& job, int64_t step);
  // Waits until every shard of some checkpoint of the job is on two workers.
  void ExpectCopied(const std::string& job);
  // For failure messages: the job's state, its events, and the ends of logs.
  std::string Story(const std::string& job);

  // The event logs of rank 0, from all workers, attempt by attempt.
  std::vector<nlohmann::json> EventLog(const std::string& job) const;
  // The losses of nibble-trainer with the same job, without a cluster; computed once per job.
  const std::map<int64_t, uint64_t>& UndisturbedLosses(const TinyJob& job);

  struct Rank {
    std::string worker, job;
    int64_t attempt = 0;
    int32_t rank = 0;
    ProcessIdentity process;
  };
  std::vector<Rank> LiveRanks() const;

  // Sets the wall clock of the role's processes to `ahead` of this machine's; negative: behind.
  void SetWallClock(const std::string& role, std::chrono::milliseconds ahead);

  // Fills the worker's disk, or frees it.
  void SetFull(const std::string& role, bool full);

  // SIGKILL; returns when the process has ended.
  void Kill(const std::string& role);
  // Starts the process; returns when it is ready.
  void Restart(const std::string& role);
  // For the next start of the coordinator, in addition to the flags that every test sets.
  void SetCoordinatorFlags(std::vector<std::string> flags);

 private:
  // Calls with the request about this job; a test failure if it fails.
  template <class Request, class Response>
  Response AskAbout(const std::string& job, const Rpc<Request, Response>& rpc,
                    Request request = {});
  void TakeDown();
  void MountDisk(const std::string& path);
  std::string ClocksDirectory() const { return root_ + "/clocks"; }

  std::string root_;
  std::map<std::string, std::unique_ptr<TcpProxy>> proxies_;
  LocalCluster::Options cluster_options_;
  std::unique_ptr<LocalCluster> cluster_;
  std::string address_;
  std::unique_ptr<CoordinatorStub> stub_;
  std::unique_ptr<JobWatch> watch_;
  std::map<std::string, std::map<int64_t, uint64_t>> undisturbed_;  // by spec
  std::vector<std::string> disks_;                                  // mount points
  int64_t ids_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_
