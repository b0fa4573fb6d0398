// For tests: a coordinator and worker daemons as they are run, each a process of its own, in a
// directory of the test's own.
//
// Ownership: owns the processes and the directory. Thread-safety: none.
#ifndef NIBBLE_TESTS_AGENT_TEST_CLUSTER_H_
#define NIBBLE_TESTS_AGENT_TEST_CLUSTER_H_

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
  // As StartWorker, with its data on a disk of its own, of so many bytes. False where this machine
  // lets nobody mount one.
  bool StartWorkerOnDisk(const std::string& name, int slots, int64_t bytes);
  // Takes what room is left on that disk at this moment; gives all of it back.
  void FillDisk(const std::string& name);
  void FreeDisk(const std::string& name);
  // SIGKILL, as the end of its node would be.
  void KillWorker(const std::string& name);

  // A job of `ranks` that makes a checkpoint every few steps; `more` are lines of YAML.
  std::string Spec(int ranks, int steps, const std::string& more) const;
  // Its id. `allowed_ranks`: world sizes that it may run with; empty: the spec's.
  std::string Submit(const std::string& spec, const std::vector<int>& allowed_ranks = {});
  v1::Job Describe(const std::string& job);
  // Until it is in one of the states; what it says then.
  v1::Job Await(const std::string& job, const std::vector<v1::JobState>& states);
  // Shards of the newest checkpoint of the job; none where there is no checkpoint.
  v1::DescribeCheckpointResponse Newest(const std::string& job);
  // Looks again and again; false where it is not so in time.
  static bool Eventually(const std::function<bool()>& so);

  // Loss by step, as whichever worker had rank 0 logged it last; bit for bit.
  std::map<int64_t, double> Losses(const std::string& job) const;
  // Of the trainer by itself, all ranks on this machine.
  std::map<int64_t, double> LossesWithoutCluster(const std::string& spec) const;
  // What the processes have said, for failures.
  std::string Chatter() const;

  // Where a worker's data are, as this process sees them.
  std::filesystem::path DataOf(const std::string& worker) const;

  std::filesystem::path root_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  std::map<std::string, pid_t> processes_;  // by name

 private:
  // `disk_bytes`: of the disk that is mounted as its data directory; 0: none.
  pid_t Spawn(const std::string& name, const std::vector<std::string>& words,
              int64_t disk_bytes = 0) const;
  void RunWorker(const std::string& name, int slots, const std::vector<std::string>& flags,
                 int64_t disk_bytes);
  std::string address_;
  std::set<std::string> on_disks_;  // workers
  int requests_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_AGENT_TEST_CLUSTER_H_
