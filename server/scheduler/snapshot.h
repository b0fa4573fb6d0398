// The scheduler's input: workers, queues and jobs at one moment, as plain values. The owner of the
// cluster's state fills it; the scheduler keeps nothing between two plans.
//
// The order of the lists does not matter: the same entities in another order give the same plan.
// Names are unique per list. Times are milliseconds of one monotonic clock. `Job::submitted` is a
// rank and not a time, since the clock may have started after the submission.
//
// Ownership: values. Thread-safety: values; pure functions.
#ifndef NIBBLE_SERVER_SCHEDULER_SNAPSHOT_H_
#define NIBBLE_SERVER_SCHEDULER_SNAPSHOT_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace nibble::scheduler {

enum class WorkerState : uint8_t {
  kReady,
  kCordoned,  // takes no new work; running jobs stay
  kDraining,  // takes no new work; running jobs move away through a checkpoint
  kLost,      // its lease has expired: no slots
};

struct Worker {
  std::string name;
  std::string rack;                 // "": unknown; such workers count as one rack
  std::vector<std::string> labels;  // "device=cuda", "fp4=tensor-cores"; any order
  int slots = 0;                    // 0 to kMaxSlotsPerWorker
  WorkerState state = WorkerState::kReady;
};
inline constexpr int kMaxSlotsPerWorker = 1024;

inline constexpr int64_t kUnlimited = -1;

// Queues of one cohort lend each other unused quota.
struct Queue {
  std::string name;
  int64_t quota = kUnlimited;         // slots that it may use at any time
  std::string cohort;                 // "": neither borrows nor lends; only queues with a quota
  int64_t borrow_limit = kUnlimited;  // slots above its quota that it may hold
};

enum class JobPhase : uint8_t {
  kQueued,      // holds no slots
  kRecovering,  // an attempt failed; holds no slots, but comes before queued jobs of its priority
  kStarting,    // `held` is reserved for it, even while other jobs have not left those slots yet
  kRunning,     // includes paused jobs that keep their slots
  kResizing,    // checkpoints on `held` and resumes on `next`
  kStopping,    // checkpoints, then leaves `held`
};

inline bool IsWaiting(JobPhase phase) {
  return phase == JobPhase::kQueued || phase == JobPhase::kRecovering;
}
inline bool IsActive(JobPhase phase) {
  return phase == JobPhase::kStarting || phase == JobPhase::kRunning ||
         phase == JobPhase::kResizing;
}

struct SlotsOn {
  std::string worker;
  int slots = 0;
  friend bool operator==(const SlotsOn&, const SlotsOn&) = default;
};
using Placement = std::vector<SlotsOn>;  // each worker once

struct Job {
  std::string name;
  std::string queue;
  int priority = 0;       // higher comes first
  int64_t submitted = 0;  // its place among equals, lower first; a preempted job keeps it
  JobPhase phase = JobPhase::kQueued;

  // World sizes that it can run with: `sizes`, or if that is empty all of min_slots..max_slots.
  int min_slots = 1;
  int max_slots = 1;
  std::vector<int> sizes;  // ascending, within min_slots..max_slots

  std::vector<std::string> required;          // labels that each of its workers has
  std::vector<std::string> preferred;         // labels that its workers should have, best effort
  std::vector<std::string> excluded_workers;  // workers that failed it; may name absent ones
  int spare_slots = 0;      // kept free for it on other workers while it is active, best effort
  bool preemptible = true;  // false: neither preempted, nor shrunk, nor moved by a drain

  int64_t not_before_ms = 0;    // backoff after a failure
  int64_t expected_ms = 0;      // of a waiting job, how long it will hold its slots; 0: unknown
  int64_t expected_end_ms = 0;  // of an active job; 0, or in the past: unknown

  Placement held;             // for kStarting, kRunning, kResizing, kStopping
  Placement next;             // for kResizing
  int64_t checkpoint_ms = 0;  // its last committed checkpoint, or the start if there is none
  int64_t resized_ms = 0;     // its last start or change of size
};

// The world sizes that a job allows: its list, or every size of its range.
inline int SmallestSize(const Job& job) {
  return job.sizes.empty() ? job.min_slots : job.sizes.front();
}

inline int LargestSize(const Job& job) {
  return job.sizes.empty() ? job.max_slots : job.sizes.back();
}

// The largest allowed size that is at most `bound`; 0 if all are larger.
inline int LargestSizeWithin(const Job& job, int64_t bound) {
  if (bound < SmallestSize(job)) return 0;
  if (job.sizes.empty()) return static_cast<int>(std::min<int64_t>(bound, job.max_slots));
  return *(std::upper_bound(job.sizes.begin(), job.sizes.end(), bound) - 1);
}

struct Snapshot {
  std::vector<Worker> workers;
  std::vector<Queue> queues;
  std::vector<Job> jobs;  // all unfinished ones
};

// Checks a snapshot before it is planned on. InvalidArgument, naming the entity, the field, the
// value and the bound, for: an empty or repeated name, slots outside 0..kMaxSlotsPerWorker, a quota
// or limit below kUnlimited, a cohort of a queue without quota, invalid sizes, an active job
// without slots, a waiting job with slots, a placement that names a worker twice.
absl::Status CheckSnapshot(const Snapshot& snapshot);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_SNAPSHOT_H_
