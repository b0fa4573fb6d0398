// For tests: a whole cluster of real processes in a directory of its own, with short leases, its
// stubs, and hands on its processes and wires.
//
// Ownership: owns the directory and ends every process. Thread-safety: none but for the watch.
#ifndef NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_
#define NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "client/cluster/detached_process.h"
#include "client/cluster/local_cluster.h"
#include "grpcpp/grpcpp.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "tests/cluster/job_watch.h"
#include "tests/cluster/tcp_proxy.h"
#include "tests/cluster/tiny_job.h"

namespace nibble {

// Of everything that ought to happen; far more than it takes.
inline constexpr std::chrono::seconds kPatience(120);

// Of the programs that the tests depend on.
ClusterPrograms TestPrograms();
std::string NibbleProgram();

// From now on what this process mounts is seen by it and its children only, and is gone with them.
// Call it before there is a second thread. False where this machine does not let it.
bool EnterOwnMounts();

class ClusterBed {
 public:
  static constexpr std::chrono::milliseconds kLease{1500};

  struct Options {
    int workers = 2;
    int slots = 1;
    bool proxies = false;      // workers reach the coordinator through a wire that can be cut
    bool wall_clocks = false;  // each process has one of its own, which SetWallClock sets
    // Each worker's data are on a file system of their own, which SetFull fills. The process must
    // have called EnterOwnMounts.
    bool disks = false;
    std::vector<std::string> coordinator_flags, worker_flags;
  };

  // Up and ready, or a test failure.
  explicit ClusterBed(const Options& options);
  ~ClusterBed();
  ClusterBed(const ClusterBed&) = delete;
  ClusterBed& operator=(const ClusterBed&) = delete;

  LocalCluster& cluster() { return *cluster_; }
  JobWatch& watch() { return *watch_; }
  v1::Coordinator::Stub& stub() { return *stub_; }
  const std::string& address() const { return address_; }
  const std::string& root() const { return root_; }
  std::string corpus() const { return root_ + "/corpus.txt"; }
  TcpProxy& proxy(const std::string& role) { return *proxies_.at(role); }

  // Calls the coordinator; a mutation gets a new request id where it has none. While nobody answers
  // it is repeated as it is.
  template <class Request, class Response>
  grpc::Status Call(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                    Request request, Response* response) {
    if constexpr (requires { request.set_request_id(""); }) {
      if (request.request_id().empty()) request.set_request_id(NewId());
    }
    const auto deadline = std::chrono::system_clock::now() + kPatience;
    while (true) {
      grpc::ClientContext context;
      context.set_deadline(deadline);
      context.set_wait_for_ready(true);
      const grpc::Status status = (stub_.get()->*method)(&context, request, response);
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE) return status;
      (void)AwaitAnyEnd({}, std::chrono::milliseconds(20));
    }
  }
  std::string NewId() { return "request-" + std::to_string(++ids_); }

  // The id, or a test failure.
  std::string Submit(const TinyJob& job, const v1::JobScheduling& scheduling = {});
  std::string SubmitSpec(const std::string& yaml, const v1::JobScheduling& scheduling = {});
  v1::Job Describe(const std::string& job);
  std::vector<v1::JobEvent> Events(const std::string& job);
  std::vector<v1::RecipeRevision> Revisions(const std::string& job);
  std::vector<v1::Checkpoint> Checkpoints(const std::string& job);
  // A test failure, with what there is to read, where it does not get there.
  void ExpectState(const std::string& job, v1::JobState state);
  void ExpectStep(const std::string& job, int64_t step);
  // Of some checkpoint of the job every shard is on two workers.
  void ExpectCopied(const std::string& job);
  // Why a job is not where it should be: state, events, and the ends of logs.
  std::string Story(const std::string& job);

  // Of rank 0, from wherever it ran, attempt by attempt.
  std::vector<nlohmann::json> EventLog(const std::string& job) const;
  // Of nibble-trainer with the same job; the same job is run once.
  const std::map<int64_t, uint64_t>& UndisturbedLosses(const TinyJob& job);

  struct Rank {
    std::string worker, job;
    int64_t attempt = 0;
    int32_t rank = 0;
    ProcessIdentity process;
  };
  std::vector<Rank> LiveRanks() const;

  // From now on the wall clock of the role's processes is `ahead` of this machine's, or behind.
  void SetWallClock(const std::string& role, std::chrono::milliseconds ahead);

  // There is no room on the worker's disk, or there is again.
  void SetFull(const std::string& role, bool full);

  // kill -9, and gone.
  void Kill(const std::string& role);
  // Again, and ready.
  void Restart(const std::string& role);
  // Of its next life, beside those that every test's has.
  void SetCoordinatorFlags(std::vector<std::string> flags);

 private:
  void TakeDown();
  void MountDisk(const std::string& path);
  std::string ClocksDirectory() const { return root_ + "/clocks"; }

  std::string root_;
  std::map<std::string, std::unique_ptr<TcpProxy>> proxies_;
  LocalCluster::Options cluster_options_;
  std::unique_ptr<LocalCluster> cluster_;
  std::string address_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::unique_ptr<JobWatch> watch_;
  std::map<std::string, std::map<int64_t, uint64_t>> undisturbed_;  // by spec
  std::vector<std::string> disks_;                                  // where they are mounted
  int64_t ids_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_CLUSTER_BED_H_
