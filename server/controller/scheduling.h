// Between the state and the scheduler: when intervals of jobs began (Moments), the snapshot that
// the scheduler plans on, and the slots behind a placement.
//
// A plan may promise slots that other jobs still leave. Such promises, and the sizes that jobs are
// being resized to, are kept by the caller and are not durable: after a restart the scheduler plans
// anew.
//
// Ownership: Moments owns its contents. Thread-safety: Moments: all methods; it calls no other
// object, so any lock may be held around it. The rest are pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_SCHEDULING_H_
#define NIBBLE_SERVER_CONTROLLER_SCHEDULING_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "server/scheduler/snapshot.h"
#include "server/state/decide.h"
#include "server/state/state.h"

namespace nibble {

// When the intervals of a job began, on this process's monotonic clock: back-offs, stops, launches,
// checkpoints. The state stores durations and, for people, wall-clock times; decisions use
// Moments, so that a jump of the wall clock does not matter.
//
// A moment is when a job was first noted with its cause. Jobs are noted as soon as the cause is
// durable. After a restart of the coordinator, unfinished intervals are measured from their
// beginning again. States may be noted in any order: the moments of a newer attempt stay.
class Moments {
 public:
  struct OfJob {
    int64_t not_before_ms = 0;  // of a job without an attempt: the end of its back-off; 0: none
    int64_t stop_by_ms = 0;     // of a stopping attempt: the end of its grace; 0: not stopping
    int64_t launched_ms = 0;    // of its attempt; 0: none
    int64_t checkpoint_ms = 0;  // of its attempt: its newest good checkpoint, or the launch
  };

  // Notes the changes of a job of `state`; returns its moments.
  OfJob Note(const State& state, const v1::JobRecord& job, int64_t now_ms);
  void Forget(const std::string& job);

 private:
  struct Known {
    int64_t ended = -1;  // attempt after which the job backs off
    int64_t not_before_ms = 0;
    int64_t attempt = 0;
    int64_t launched_ms = 0;
    int64_t grace_ms = 0;  // of `attempt`; 0: not stopping
    int64_t stop_by_ms = 0;
    int64_t checkpoint_step = -1;
    int64_t checkpoint_ms = 0;
  };

  Mutex mutex_;
  std::map<std::string, Known> known_ ABSL_GUARDED_BY(mutex_);  // by job
};

struct Promises {
  std::map<std::string, scheduler::Placement> reserved;  // by job that waits for others to leave
  std::map<std::string, scheduler::Placement> resizing;  // by job that stops to resume there
};

// Has every job that holds or waits for slots: not finished ones, not paused ones without ranks,
// not those in `held_back`. Times are those of `moments`.
scheduler::Snapshot FillSnapshot(const State& state, const Promises& promises,
                                 const std::map<std::string, std::string>& held_back,
                                 Moments& moments, int64_t now_ms);

// Workers on which jobs may not run: by job and worker, the reason.
using TakenWorkers = std::map<std::string, std::map<std::string, std::string>>;
// Keeps the jobs off these workers.
void ExcludeTaken(const TakenWorkers& taken, scheduler::Snapshot& snapshot);
// Drops promises on them.
void DropTaken(const TakenWorkers& taken, Promises& promises);

// Drops obsolete promises: to jobs that no longer wait or stop, or on workers that take no new
// attempts.
void DropBroken(const State& state, Promises& promises);

// Free slots of each worker that are close to each other (slot_choice.h); unset if one has too few.
std::optional<std::vector<SlotChoice>> ChooseSlots(const State& state,
                                                   const scheduler::Placement& placement);

// The checkpoint that a job's next attempt loads.
struct Resume {
  std::optional<v1::CheckpointRef> from;  // unset: begins at step 0
  std::string remark;                     // for people, if it is not the newest checkpoint
};
// If there are checkpoints and none can be loaded, because starting over would lose their progress:
//   Unavailable  the workers that have them are absent (named)
//   DataLoss     WhyNeverResumes
absl::StatusOr<Resume> ChooseResume(const State& state, const v1::JobRecord& job);

// Jobs that wait for slots and cannot be launched without a checkpoint, with the reason.
std::map<std::string, std::string> HeldBack(const State& state);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_SCHEDULING_H_
