// nibble-coordinator as people run it, for tests and benchmarks: started, asked, measured, killed.
//
// Ownership: owns the process and ends it. Thread-safety: none.
#ifndef NIBBLE_SERVER_SERVICE_TESTING_COORDINATOR_PROCESS_H_
#define NIBBLE_SERVER_SERVICE_TESTING_COORDINATOR_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/channel.h"

namespace nibble {

class CoordinatorProcess {
 public:
  struct Options {
    std::string program;  // path of nibble-coordinator
    std::string store;    // directory
    std::vector<std::string> flags;
    std::string http;                   // host:port of its plain HTTP; empty: none
    std::chrono::seconds patience{60};  // until it listens
  };

  // Returns when it listens. Unavailable with its words where it ends or does not listen in time.
  static absl::StatusOr<std::unique_ptr<CoordinatorProcess>> Start(const Options& options);
  ~CoordinatorProcess();
  CoordinatorProcess(const CoordinatorProcess&) = delete;
  CoordinatorProcess& operator=(const CoordinatorProcess&) = delete;

  int port() const;
  std::string address() const;
  int http_port() const;  // 0: it serves no HTTP
  // A connection of its own.
  std::shared_ptr<grpc::Channel> Connect() const;

  bool Lives();
  int64_t RssBytes() const;
  double CpuSeconds() const;  // user and system, so far
  // SIGTERM, and waits. Its exit code, or 128 and the signal.
  int End();
  // SIGKILL, and waits.
  void Kill();
  // What it has said on standard error.
  std::string Words() const;

 private:
  class Ear;

  CoordinatorProcess(pid_t pid, std::unique_ptr<Ear> ear);
  int Reap(int options);

  pid_t pid_;
  int exit_ = -1;  // -1: it lives
  const std::unique_ptr<Ear> ear_;
};

// Where the build puts the program, seen from the folder that tests and benchmarks run in.
std::string CoordinatorProgram();

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_TESTING_COORDINATOR_PROCESS_H_
