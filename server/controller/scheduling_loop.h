// Carries out what the scheduler plans: launches, preemptions, changes of size, and the ends of
// stops whose grace is over and of jobs that can never run again.
//
// A plan is made without a lock; each of its steps is decided again on the then current state, and
// a step that no longer fits is dropped; the next plan replaces it. A placement whose slots are
// still being freed is a promise, kept here and not durable (scheduling.h).
//
// Thread-safety: none; calls must come one after the other.
#ifndef NIBBLE_SERVER_CONTROLLER_SCHEDULING_LOOP_H_
#define NIBBLE_SERVER_CONTROLLER_SCHEDULING_LOOP_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "server/controller/controller_context.h"
#include "server/controller/recovery.h"
#include "server/controller/scheduling.h"
#include "server/scheduler/plan.h"

namespace nibble {

class SchedulingLoop {
 public:
  SchedulingLoop(const ControllerContext& context, const Recovery& recovery)
      : context_(context), recovery_(recovery) {}

  // Ends stops that are due; plans if the state has changed, a job's back-off is over, or a second
  // has passed.
  void Tick(int64_t now_ms);

 private:
  void EndStops(int64_t now_ms);
  void LaunchPromised();
  void Plan(int64_t sequence, int64_t now_ms);
  // Fails the jobs that have been among `never`, which no checkpoint lets run again, for the bound.
  void FailUnresumable(const std::set<std::string>& never, int64_t now_ms);
  void CarryOut(const scheduler::Decision& decision, int64_t now_ms);
  // Returns whether the attempt was launched.
  bool Launch(const std::string& job, const scheduler::Placement& placement,
              const std::string& reason);

  const ControllerContext& context_;
  const Recovery& recovery_;
  Promises promises_;
  int64_t planned_sequence_ = -1;
  int64_t planned_ms_ = 0;
  std::map<std::string, int64_t> unresumable_since_ms_;  // by job
  // The first end of a back-off after the last plan; unset: none.
  std::optional<int64_t> backoff_ends_ms_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_CONTROLLER_SCHEDULING_LOOP_H_
