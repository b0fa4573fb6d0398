// Runs the ranks of a job as processes of this machine, without a cluster: the current program is
// started once per rank and the group lives and ends together.
//
// Each rank gets `arguments` and then --rank i --world N --rendezvous served:HOST:PORT, the address
// of a server on loopback that runs for as long as the ranks. Ranks inherit standard input, output
// and error, and no other descriptor. Each is in a process group of its own, so that a terminal's
// Ctrl-C reaches them once, through the launcher.
//
// No rank outlives the launch: when one fails the rest get SIGTERM and, after the grace, SIGKILL;
// when the launching thread dies, however it dies, the kernel kills them all.
//
// Ownership: owns the processes it starts and the rendezvous server.
// Thread-safety: one launch at a time per process. Call it from a program's main thread before it
// starts others: those would take the signals that are to be forwarded.
#ifndef NIBBLE_WORKER_TRAINER_COMM_LAUNCH_LOCAL_H_
#define NIBBLE_WORKER_TRAINER_COMM_LAUNCH_LOCAL_H_

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble {

struct LaunchOptions {
  int ranks = 1;  // at most kMaxLocalRanks
  // The program's arguments, without its name.
  std::vector<std::string> arguments;
  // Between SIGTERM and SIGKILL.
  std::chrono::milliseconds grace = std::chrono::seconds(10);
};

inline constexpr int kMaxLocalRanks = 256;

struct RankExit {
  int exit_code = 0;     // if signal is 0
  int signal = 0;        // that killed it; 0: none
  bool stopped = false;  // it ended after the launcher had begun to stop the ranks
  bool ok() const { return exit_code == 0 && signal == 0; }
};

struct LaunchResult {
  std::vector<RankExit> ranks;
  int first_failed = -1;     // the rank whose failure stopped the others
  int forwarded_signal = 0;  // the last signal forwarded: INT, TERM, HUP, QUIT, USR1, 2
  bool ok() const;
  // "rank 1 was killed by signal 9 (Killed); rank 0 was stopped".
  std::string Describe() const;
};

// Returns when every rank has ended and is reaped. An error means that the ranks could not be
// started; none is left running.
absl::StatusOr<LaunchResult> LaunchLocal(const LaunchOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_COMM_LAUNCH_LOCAL_H_
