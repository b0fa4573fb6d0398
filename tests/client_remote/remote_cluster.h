// A coordinator on a port of its own, its store in memory, and the command line that speaks to it:
// the real parser, client, wire and service.
//
// Ownership: owns all of it, and the environment variables NIBBLE_SERVER and NIBBLE_HOME.
// Thread-safety: Nibble from one thread at a time (stdout is the process's); Later runs one beside
// the test, which meanwhile moves the cluster.
#ifndef NIBBLE_TESTS_CLIENT_REMOTE_REMOTE_CLUSTER_H_
#define NIBBLE_TESTS_CLIENT_REMOTE_REMOTE_CLUSTER_H_

#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/local/command_testing.h"
#include "gtest/gtest.h"
#include "server/controller/testing.h"
#include "server/service/coordinator_server.h"

namespace nibble {

class RemoteCluster {
 public:
  RemoteCluster();
  ~RemoteCluster();

  TestCoordinator& coordinator() { return *coordinator_; }
  std::string address() const;

  // `nibble ARGUMENTS`, in this process. The noun checkpoint is not there: its verbs come with
  // SentencePiece, which does not go together with the libprotobuf.so of this program;
  // NibbleProcess has it.
  static Outcome Nibble(const std::vector<std::string>& arguments);
  static std::future<Outcome> Later(std::vector<std::string> arguments);
  // The output of `nibble` with -o json; fails the test where it is none, or the exit code is not
  // 0.
  static nlohmann::json Json(std::vector<std::string> arguments,
                             Outcome (*nibble)(const std::vector<std::string>&) = Nibble);

  // The file with a spec of TestCoordinator::Spec.
  static std::string SpecFile(const std::string& name = "train", int ranks = 2,
                              const std::string& more = "");
  // Submits by the command line; the id.
  std::string Submit(const std::string& name = "train", int ranks = 2);

  // The process ends, and Start begins another on what is durable, on the same port.
  void Stop();
  void Start();

 private:
  std::unique_ptr<TestCoordinator> coordinator_;
  std::unique_ptr<CoordinatorServer> server_;
  int port_ = 0;
};

// A worker w1 of two slots that runs what it is told.
class RunningWorker : public TestWorker {
 public:
  explicit RunningWorker(RemoteCluster& cluster, const std::string& name = "w1", int slots = 2)
      : TestWorker(cluster.coordinator(), name, slots), cluster_(cluster) {}

  // The scheduler places what waits, and ranks run from `step` on.
  void Run(int64_t step = 0);
  // The gang's ranks have made steps, of which these losses are told, the first of `first`.
  void Tell(int64_t first, const std::vector<double>& losses);
  // Every gang comes to this phase.
  void Move(v1::RankPhase phase, int64_t step, const std::string& detail = "");

 private:
  RemoteCluster& cluster_;
};

// A cluster for each test, and its command line in short.
class RemoteClusterTest : public testing::Test {
 protected:
  static Outcome Nibble(const std::vector<std::string>& arguments) {
    return RemoteCluster::Nibble(arguments);
  }
  static nlohmann::json Json(const std::vector<std::string>& arguments) {
    return RemoteCluster::Json(arguments);
  }

  RemoteCluster cluster_;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLIENT_REMOTE_REMOTE_CLUSTER_H_
