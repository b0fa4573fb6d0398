// For tests: a cluster of real processes in its own directory; calls to it;
// control of its processes and connections.
//
// Ownership: owns the directory and ends every process. Thread-safety: none, except for the watch.
#ifndef NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_
#define NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cluster/local_cluster.h"
#include "client/remote/rpcs.h"
#include "common/process/process.h"
#include "gtest/gtest.h"
#include "tests/cluster/job_watch.h"
#include "tests/cluster/tcp_proxy.h"
#include "tests/cluster/tiny_job.h"
#include "tests/processes/processes.h"

namespace nibble {

// The programs that the tests depend on.
ClusterPrograms TestPrograms();
std::string NibbleProgram();

// Enters a private mount namespace, at the first call: mounts of this thread are visible only to
// it, and to threads and processes that it starts later, and end with them. False if it is not
// permitted.
bool EnterOwnMounts();

// Sets one field in a new revision after whichever is the newest. `at`: as in SetRecipeRequest.
v1::SetRecipeRequest RecipeChange(const std::string& job, const std::string& field,
                                  const std::string& value, const std::string& at = "");
// A request about the job, with a reason.
template <class Request>
Request OfJob(const std::string& job, Request request = {}) {
  request.set_job(job);
  if constexpr (requires { request.set_reason(""); }) request.set_reason("test");
  return request;
}

// Whether there is such a checkpoint, and each of its shards is on two workers.
bool IsCopied(const v1::DescribeCheckpointResponse& checkpoint);

class ClusterBed {
 public:
  // For tests of workers that are lost. Others have long leases: a busy machine may keep a worker
  // from reporting for seconds.
  static constexpr std::chrono::milliseconds kShortLease{1500};
  static constexpr std::chrono::milliseconds kLease{10'000};

  struct Options {
    int workers = 2;
    int slots = 1;
    std::chrono::milliseconds lease = kLease;
    bool proxies = false;      // workers connect through a TcpProxy
    bool wall_clocks = false;  // each process has its own, which SetWallClock sets
    // Each worker's data is on its own file system, which SetFull fills. The process must have
    // called EnterOwnMounts.
    bool disks = false;
    bool coordinator_disk = false;  // as `disks`, for the coordinator's data
    bool late_devices = false;      // ranks train on the late device (kernels/late)
    ClusterPrograms programs = TestPrograms();
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
  // The worker's checkpoints of the job.
  std::string Store(const std::string& worker, const std::string& job) const {
    return cluster_->paths().Data(worker) + "/jobs/" + job + "/checkpoints";
  }
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
  // Calls; a test failure if the call fails.
  template <class Request, class Response>
  Response Ask(const Rpc<Request, Response>& rpc, const Request& request = {},
               const std::source_location& at = std::source_location::current()) {
    Response response;
    const absl::Status status = Call(rpc, request, &response);
    if (!status.ok()) {
      ADD_FAILURE_AT(at.file_name(), static_cast<int>(at.line()))
          << rpc.method << ": " << status.message() << "\n"
          << request.ShortDebugString();
    }
    return response;
  }
  // Calls with the request about this job.
  template <class Request, class Response>
  Response AskAbout(const std::string& job, const Rpc<Request, Response>& rpc,
                    const Request& request = {},
                    const std::source_location& at = std::source_location::current()) {
    return Ask(rpc, OfJob<Request>(job, request), at);
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
  // As JobWatch::Await.
  void ExpectSeen(const std::string& job, const std::function<bool(const JobWatch::Seen&)>& holds);
  // Waits until the job runs and has made further steps.
  void ExpectProgress(const std::string& job);
  // Waits for such an event and returns the last one.
  v1::JobEvent ExpectEvent(const std::string& job,
                           const std::function<bool(const v1::JobEvent&)>& holds);
  // Empty if there is no such checkpoint.
  v1::DescribeCheckpointResponse DescribeCheckpoint(const v1::CheckpointRef& ref);
  v1::DescribeCheckpointResponse NewestCheckpoint(const std::string& job);
  // Waits until some checkpoint of the job is replicated (IsCopied).
  void ExpectCopied(const std::string& job);
  // For failure messages: the job's state, its events, and the ends of logs.
  std::string Story(const std::string& job);

  // The event logs of rank 0, from all workers, attempt by attempt.
  std::vector<nlohmann::json> EventLog(const std::string& job) const;
  // The losses of nibble-trainer with the same job, without a cluster; computed once per process.
  const std::map<int64_t, uint64_t>& UndisturbedLosses(const TinyJob& job);
  // The last loss that the job logged for each step is bit for bit that of the undisturbed run.
  void ExpectUndisturbedLosses(const std::string& job, const TinyJob& spec);

  // Cancels the job, whose spec has no decay. Until its last checkpoint, as above.
  void ExpectUndisturbedUntilCancelled(const std::string& job, TinyJob spec);
  // Of a job that has ended: it made no step twice, and all attempts but the last one were stopped.
  void ExpectEachStepOnce(const std::string& job);

  struct Rank {
    std::string worker, job;
    int64_t attempt = 0;
    int32_t rank = 0;
    ProcessIdentity process;
  };
  std::vector<Rank> LiveRanks() const;
  // A test failure if it does not run.
  Rank LiveRank(const std::string& job, int32_t number);

  // Drains the worker, or only cordons it.
  void Drain(const std::string& worker, bool cordon_only = false);

  // Sets the wall clock of the role's processes to `ahead` of this machine's; negative: behind.
  void SetWallClock(const std::string& role, std::chrono::milliseconds ahead);

  // Fills the role's disk, or frees it.
  void SetFull(const std::string& role, bool full);

  // SIGKILL; returns when the process has ended.
  void Kill(const std::string& role);
  // SIGTERM; a test failure if the process has not ended within the grace.
  void Stop(const std::string& role, std::chrono::milliseconds grace);
  // Starts the process; returns when it is ready.
  void Restart(const std::string& role);
  // For the next start of the coordinator, in addition to the flags that every test sets.
  void SetCoordinatorFlags(std::vector<std::string> flags);
  // For the next start of each role.
  void SetPrograms(const ClusterPrograms& programs);

 private:
  void TakeDown();
  void MountDisk(const std::string& path);
  std::string ClocksDirectory() const { return root_ + "/clocks"; }

  const std::chrono::milliseconds lease_;
  std::string root_;
  std::map<std::string, std::unique_ptr<TcpProxy>> proxies_;
  LocalCluster::Options cluster_options_;
  std::unique_ptr<LocalCluster> cluster_;
  std::string address_;
  std::unique_ptr<CoordinatorStub> stub_;
  std::unique_ptr<JobWatch> watch_;
  std::vector<std::string> disks_;  // mount points
  int64_t ids_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_
