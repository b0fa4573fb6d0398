// Runs the program nibble-coordinator for tests and benchmarks: starts, measures and ends it.
//
// Ownership: owns the process; the destructor kills it. Thread-safety: one thread at a time.
#ifndef NIBBLE_TESTS_SERVICE_COORDINATOR_PROCESS_H_
#define NIBBLE_TESTS_SERVICE_COORDINATOR_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/descriptor.h"
#include "grpcpp/channel.h"

namespace nibble {

class CoordinatorProcess {
 public:
  struct Options {
    std::string program;  // path of nibble-coordinator
    std::string store;    // directory
    std::vector<std::string> flags;
    std::string http;                   // host:port of plain HTTP; empty: none
    std::chrono::seconds patience{60};  // time allowed until it listens
  };

  // Returns when the program listens. The errors of SpawnProcess; with its output: Internal if it
  // exits, DeadlineExceeded if it does not listen in time.
  static absl::StatusOr<std::unique_ptr<CoordinatorProcess>> Start(const Options& options);
  ~CoordinatorProcess();
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  int port() const;
  std::string address() const;
  int http_port() const;  // 0: no HTTP
  // A new connection, not shared with other channels.
  std::shared_ptr<grpc::Channel> Connect() const;

  bool Lives();
  int64_t RssBytes() const;
  double CpuSeconds() const;  // user and system, so far
  // Sends SIGTERM and waits. Returns the exit code, or 128 plus the signal.
  int End();
  // Sends SIGKILL and waits.
  void Kill();
  // Its standard error so far.
  std::string OutputText() const;

 private:
  CoordinatorProcess(pid_t pid, OwnedDescriptor output);
  // The number between `before` and `after` in the output; 0 if it was not printed yet.
  int PrintedNumber(absl::string_view before, char after) const;
  int Reap(int options);

  pid_t pid_;
  int exit_ = -1;                 // -1: running
  const OwnedDescriptor output_;  // a file in memory
};

// Path of the built program, for tests and benchmarks.
std::string CoordinatorProgram();

}  // namespace nibble

#endif  // NIBBLE_TESTS_SERVICE_COORDINATOR_PROCESS_H_
