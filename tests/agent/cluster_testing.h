// For tests: a coordinator and worker daemons, each in its own process, in a directory of the test.
//
// Ownership: owns the processes and the directory. Thread-safety: none.
#ifndef NIBBLE_TESTS_AGENT_CLUSTER_TESTING_H_
#define NIBBLE_TESTS_AGENT_CLUSTER_TESTING_H_

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "proto/nibble/v1/coordinator.grpc.pb.h"

namespace nibble {

class TestClusterProcesses : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  void StartCoordinator(const std::vector<std::string>& flags = {});
  void StartWorker(const std::string& name, int slots, const std::vector<std::string>& flags = {});
  // As StartWorker, with its data on its own disk of `bytes` bytes. False if this machine does not
  // allow mounting one.
  bool StartWorkerOnDisk(const std::string& name, int slots, int64_t bytes);
  // Fills the free space of that disk; frees it again.
  void FillDisk(const std::string& name);
  void FreeDisk(const std::string& name);
  // SIGKILL, as if its node had failed.
  void KillWorker(const std::string& name);

  // A job of `ranks` that makes a checkpoint every few steps; `more` are lines of YAML.
  std::string Spec(int ranks, int steps, const std::string& more) const;
  // Returns its id. `allowed_ranks`: world sizes that it may run with; empty: the spec's.
  std::string Submit(const std::string& spec, const std::vector<int>& allowed_ranks = {});
  v1::Job Describe(const std::string& job);
  // Waits until it is in one of the states and returns it.
  v1::Job Await(const std::string& job, const std::vector<v1::JobState>& states);
  // Shards of the newest checkpoint of the job; none if there is no checkpoint.
  v1::DescribeCheckpointResponse Newest(const std::string& job);
  // Polls `so`; false if it does not become true in time.
  static bool Eventually(const std::function<bool()>& so);

  // The exact loss of each step, as last logged by the worker of rank 0.
  std::map<int64_t, double> Losses(const std::string& job) const;
  // The losses of a trainer without a cluster, with all ranks on this machine.
  std::map<int64_t, double> LossesWithoutCluster(const std::string& spec) const;
  // The output of the processes, for failure messages.
  std::string Chatter() const;

  // A worker's data directory as this process can reach it.
  std::filesystem::path DataOf(const std::string& worker) const;

  std::filesystem::path root_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::map<std::string, pid_t> processes_;  // by name

 private:
  // `disk_bytes`: size of the disk mounted as its data directory; 0: none.
  pid_t Spawn(const std::string& name, const std::vector<std::string>& words,
              int64_t disk_bytes = 0) const;
  void RunWorker(const std::string& name, int slots, const std::vector<std::string>& flags,
                 int64_t disk_bytes);
  std::string address_;
  std::set<std::string> on_disks_;  // workers
  int requests_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_AGENT_CLUSTER_TESTING_H_
