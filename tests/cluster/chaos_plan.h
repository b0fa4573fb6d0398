// For tests: which faults come, in which order and after which pauses: drawn from a seed before
// anything runs, so that the seed gives them again.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_TESTS_CLUSTER_CHAOS_PLAN_H_
#define NIBBLE_TESTS_CLUSTER_CHAOS_PLAN_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace nibble {

enum class Fault : uint8_t {
  kKillRank,              // SIGKILL of a trainer
  kKillWorker,            // SIGKILL of a daemon, which is started again
  kKillCoordinator,       // SIGKILL, and started again
  kStopWorker,            // SIGSTOP of a daemon past its lease, then SIGCONT
  kStopRank,              // SIGSTOP of a trainer for a while, then SIGCONT
  kCutWire,               // a daemon's connection breaks, and none is made past its lease
  kStallWire,             // nothing passes on a daemon's connection past its lease
  kJumpCoordinatorClock,  // its wall clock is set, by seconds or by a month, and stays so
  kJumpWorkerClock,       // a daemon's and its ranks', likewise
  kFullDisk,              // a worker's disk has no room for a while
  kRemoveCheckpoints,     // a worker's directory of a job's checkpoints is removed
  kWatchStorm,            // many watches of all jobs are opened and not read
  kRestoreBackup,         // the coordinator's store is replaced by an older copy of it
};
inline constexpr int kFaults = 13;

struct PlannedFault {
  Fault fault = Fault::kKillRank;
  std::chrono::milliseconds pause{0};  // before it
  uint32_t victim = 0;                 // among those there are
  uint32_t job = 0;                    // whose checkpoint is asked for before it, likewise
};

// Each kind as often as the others, or once more, in random order.
std::vector<PlannedFault> PlanFaults(uint64_t seed, int count);
// How far a wall clock is ahead of the others after a jump; below 0: behind.
std::chrono::milliseconds WallClockAfter(const PlannedFault& planned);
std::string Describe(const PlannedFault& planned);

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_CHAOS_PLAN_H_
