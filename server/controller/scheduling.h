// Between the state and the scheduler: the snapshot that it plans on, and the slots behind a
// placement. Pure.
//
// A plan may promise slots that others still leave. Such promises (reservations), and the sizes
// that jobs are being changed to (resizes), are kept by the caller and are not durable: after a
// restart the scheduler plans anew on what is.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_CONTROLLER_SCHEDULING_H_
#define NIBBLE_SERVER_CONTROLLER_SCHEDULING_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/controller/moments.h"
#include "server/scheduler/snapshot.h"
#include "server/state/decide_gang.h"
#include "server/state/state.h"

namespace nibble {

struct Promises {
  std::map<std::string, scheduler::Placement> reserved;  // by job that waits for others to leave
  std::map<std::string, scheduler::Placement> resizing;  // by job that stops to go on so
};

// Every job that holds slots or waits for them: not those that are finished or paused without
// ranks, nor those in `held_back`. Its times are those of `moments`, on the monotonic clock.
scheduler::Snapshot FillSnapshot(const State& state, const Promises& promises,
                                 const std::map<std::string, std::string>& held_back,
                                 Moments& moments, int64_t now_ms);

// Drops the promises that no longer hold: to jobs that do not wait or stop any more, or on workers
// that take no new attempts.
void DropBroken(const State& state, Promises& promises);

// The lowest free slots of each worker; unset where one of them has too few.
std::optional<std::vector<SlotChoice>> ChooseSlots(const State& state,
                                                   const scheduler::Placement& placement);

// What the job's next attempt loads.
struct Resume {
  std::optional<v1::CheckpointRef> from;  // unset: from where the job begins
  std::string remark;                     // for people, where it is not the newest checkpoint
};
// Unavailable naming the checkpoint and its absent workers where there are checkpoints and none can
// be loaded now: starting over would throw away what they hold.
absl::StatusOr<Resume> ChooseResume(const State& state, const v1::JobRecord& job);

// Jobs that wait for slots and cannot be launched for want of a checkpoint, with the words on why.
std::map<std::string, std::string> HeldBack(const State& state);

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_SCHEDULING_H_
