// For tests: a coordinator on its own port with its store in memory, and the command line that
// calls it with the real parser, client, wire and service, in this process (RemoteCluster) or as a
// program (NibbleProcess).
//
// Ownership: a RemoteCluster owns its coordinator and the environment variables NIBBLE_SERVER and
// NIBBLE_HOME; a NibbleProcess owns its process. Thread-safety: Nibble from one thread at a time,
// since stdout belongs to the process; Later runs a command while the test changes the cluster.
#ifndef NIBBLE_TESTS_CLIENT_REMOTE_TESTING_H_
#define NIBBLE_TESTS_CLIENT_REMOTE_TESTING_H_

#include <sys/types.h>

#include <array>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "client/shell/testing.h"
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

  // Runs `nibble ARGUMENTS` in this process, without the noun checkpoint: its local source needs
  // SentencePiece, which conflicts with the libprotobuf.so of this program. For checkpoints, use
  // NibbleProcess.
  static Outcome Nibble(const std::vector<std::string>& arguments);
  static std::future<Outcome> Later(std::vector<std::string> arguments);

  // Writes a spec of TestCoordinator::Spec; returns its path.
  static std::string SpecFile(const std::string& name = "train", int ranks = 2,
                              const std::string& more = "");
  // Submits a job with the command line; returns its id.
  std::string Submit(const std::string& name = "train", int ranks = 2);

  // Stop ends the coordinator; Start starts another one with its durable state, on the same port.
  void Stop();
  void Start();

 private:
  std::unique_ptr<TestCoordinator> coordinator_;
  std::unique_ptr<CoordinatorServer> server_;
  int port_ = 0;
};

// A worker with two slots that runs the assigned ranks.
class RunningWorker : public TestWorker {
 public:
  explicit RunningWorker(RemoteCluster& cluster, const std::string& name = "w1", int slots = 2)
      : TestWorker(cluster.coordinator(), name, slots), cluster_(cluster) {}

  // Lets the scheduler place the pending jobs, and runs their ranks from `step`.
  void Run(int64_t step = 0);
  // Reports steps with these losses, from step `first`.
  void ReportSteps(int64_t first, const std::vector<double>& losses);
  // Reports that every gang is in this phase.
  void ReportPhase(v1::RankPhase phase, int64_t step, const std::string& detail = "");

 private:
  RemoteCluster& cluster_;
};

// A cluster for each test, and shortcuts for its command line.
class RemoteClusterTest : public testing::Test {
 protected:
  virtual Outcome Nibble(const std::vector<std::string>& arguments) const {
    return RemoteCluster::Nibble(arguments);
  }
  // The stdout of a command that succeeds; a test failure if it does not.
  std::string Out(const std::vector<std::string>& arguments) const;
  // The stderr of a command that fails; a test failure if its exit code is another.
  std::string Err(int exit_code, const std::vector<std::string>& arguments) const;
  // Out of the command with -o json; a test failure if it is not JSON.
  nlohmann::json Json(std::vector<std::string> arguments) const;

  RemoteCluster cluster_;
};

inline constexpr char kNibbleProgram[] = "client/nibble";

// The nibble program as users run it: its output line by line, and signals to it. The destructor
// kills it if it still runs.
class NibbleProcess {
 public:
  // Runs the program to its end.
  static Outcome Run(const std::vector<std::string>& arguments);

  explicit NibbleProcess(const std::vector<std::string>& arguments) { Start(arguments, false); }
  // Its stdin and stdout are a terminal of 80 by 24.
  static std::unique_ptr<NibbleProcess> OnTerminal(const std::vector<std::string>& arguments);
  ~NibbleProcess();
  NibbleProcess(const NibbleProcess&) = delete;
  NibbleProcess& operator=(const NibbleProcess&) = delete;

  // The next line of stdout or stderr without its newline; "" at the end. A minute without output
  // is a test failure.
  std::string OutLine() { return Line(0); }
  std::string ErrLine() { return Line(1); }
  void Signal(int signal);
  // Resizes its terminal.
  void Resize(int columns, int rows);
  // Presses keys of its terminal.
  void Type(const std::string& keys);
  // Whether its terminal passes on only whole lines, and shows what is typed: its usual mode.
  bool HasUsualMode() const;
  // The exit code, or 128 plus the signal.
  int Wait();

 private:
  NibbleProcess() = default;
  void Start(const std::vector<std::string>& arguments, bool terminal);
  std::string Line(size_t stream);
  // Reads more; false at the end.
  bool More(size_t stream);

  pid_t child_ = -1;
  std::array<int, 2> pipes_ = {-1, -1};
  std::array<std::string, 2> read_;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLIENT_REMOTE_TESTING_H_
