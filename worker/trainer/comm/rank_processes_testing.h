// For tests: runs the ranks of a group, and the server where they meet, as processes of this
// machine, forked from the test.
//
// Ownership: RunRanks leaves no process behind; a RendezvousProcess owns its process.
// Thread-safety: call it from a test without threads, since a fork copies only the calling one.
#ifndef NIBBLE_WORKER_TRAINER_COMM_RANK_PROCESSES_TESTING_H_
#define NIBBLE_WORKER_TRAINER_COMM_RANK_PROCESSES_TESTING_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"

namespace nibble {

struct RankOutcome {
  int exit_code = 0;  // 1 if a gtest expectation failed in the rank
  int signal = 0;     // that ended it, SIGKILL if it was still running at the deadline
};

// Runs body(rank) once per rank, each in a process of its own, and waits for all.
std::vector<RankOutcome> RunRanks(int world, absl::FunctionRef<void(int rank)> body,
                                  std::chrono::milliseconds deadline = std::chrono::minutes(2));

// RunRanks, and expects every rank to have ended well.
void ExpectRanks(int world, absl::FunctionRef<void(int rank)> body);

// A rendezvous server for one test, in a process of its own, so that the test has no thread.
class RendezvousProcess {
 public:
  RendezvousProcess();
  ~RendezvousProcess();
  RendezvousProcess(const RendezvousProcess&) = delete;
  RendezvousProcess& operator=(const RendezvousProcess&) = delete;
  // "served:127.0.0.1:port"
  const std::string& address() const { return address_; }

 private:
  std::string address_;
  int pid_ = -1;
};

// A loopback port that stays free for one server: others that ask for any port do not get it.
class ReservedPort {
 public:
  ReservedPort();
  ~ReservedPort();
  ReservedPort(const ReservedPort&) = delete;
  ReservedPort& operator=(const ReservedPort&) = delete;
  std::string host_port() const;
  uint16_t port() const { return port_; }

 private:
  int fd_ = -1;
  uint16_t port_ = 0;
};

// A number that the ranks of a test share; make it before RunRanks.
class SharedCounter {
 public:
  SharedCounter();
  ~SharedCounter();
  SharedCounter(const SharedCounter&) = delete;
  SharedCounter& operator=(const SharedCounter&) = delete;
  void Add(int64_t n) const { value_->fetch_add(n); }
  int64_t value() const { return value_->load(); }

 private:
  std::atomic<int64_t>* value_;
};

// A gate between processes: opens once, for all.
class Gate {
 public:
  Gate();
  ~Gate();
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void Open();
  // False if it has not opened within `patience`.
  bool Wait(std::chrono::milliseconds patience) const;

 private:
  int fds_[2];
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_RANK_PROCESSES_TESTING_H_
