// For tests: a sequence of faults and pauses, drawn from a seed before anything runs, so that the
// seed reproduces it.
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
  kKillWorker,            // SIGKILL of a daemon, then restart
  kKillCoordinator,       // SIGKILL, then restart
  kStopWorker,            // SIGSTOP of a daemon past its lease, then SIGCONT
  kStopRank,              // SIGSTOP of a trainer for a while, then SIGCONT
  kCutWire,               // a daemon's connection breaks; new ones fail past its lease
  kStallWire,             // a daemon's connection transfers nothing past its lease
  kJumpCoordinatorClock,  // its wall clock is changed by seconds or by a month, for good
  kJumpWorkerClock,       // the same for a daemon and its ranks
  kFullDisk,              // a worker's disk is full for a while
  kRemoveCheckpoints,     // a worker's directory of a job's checkpoints is removed
  kWatchStorm,            // many watches of all jobs are opened and not read
  kRestoreBackup,         // the coordinator's store is replaced by an older copy of it
  kRestoreAndLose,        // the same, while a worker is lost, which comes back later
  kDoubleStore,           // a copy of the store, which nobody announces, takes its place
};
inline constexpr int kFaults = 15;

struct PlannedFault {
  Fault fault = Fault::kKillRank;
  std::chrono::milliseconds pause{0};  // before the fault
  uint32_t victim = 0;                 // modulo the number of candidates
  uint32_t job = 0;                    // whose checkpoint is requested before the fault; modulo
};

// In random order; the numbers of any two kinds differ by at most one.
std::vector<PlannedFault> PlanFaults(uint64_t seed, int count);
// The offset of a wall clock from the others after a jump; below 0: behind.
std::chrono::milliseconds WallClockAfter(const PlannedFault& planned);
std::string Describe(const PlannedFault& planned);

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_CHAOS_PLAN_H_
