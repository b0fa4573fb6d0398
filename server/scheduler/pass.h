// One pass over the waiting jobs in scheduling order: each of them starts, takes slots from others,
// or claims slots.
//
// The scheduling order, "the line": higher priority first; within a priority, recovering jobs that
// were started before, then earlier submission, then name. Jobs that stay within their queue's own
// quota come first, then borrowers and jobs of queues without quota. Jobs behind cannot use what
// jobs ahead have claimed.
//
// Passes repeat until one changes nothing: only then would planning again add nothing to the plan.
// Each job changes at most once, so the number of passes is bounded.
//
// Ownership: refers to the world of the plan. Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_PASS_H_
#define NIBBLE_SERVER_SCHEDULER_PASS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/plan.h"
#include "server/scheduler/reservations.h"
#include "server/scheduler/victims.h"
#include "server/scheduler/world.h"

namespace nibble::scheduler {

class Pass {
 public:
  Pass(World& world, const Victims& victims, Reservations& reservations);

  // Returns whether it changed anything.
  bool Run();

  // In the order of world.jobs(), after Run().
  std::vector<Waiting> TakeWaiting();
  std::vector<Remark> TakeRemarks();

 private:
  // A job has one turn to start and another to keep its spares. The second turn has the job's place
  // among queued jobs, so that a recovering job's spares do not delay jobs ahead.
  struct Turn {
    int job = -1;
    bool spares = false;
  };
  std::vector<Turn> Line() const;

  void Leave(int job, const NodePlacement& leaves);
  void KeepSpares(int job);

  // Refuses jobs that cannot start whatever slots are free; defers borrowers to the second round.
  int64_t OwnedAhead(int job) const;
  void FirstRound(int job);
  void SecondRound(int job);
  void Attempt(int job, bool owns);
  bool StartOnOpen(int job, int size);
  bool StartOnLent(int job, int size);
  bool StartOnSoon(int job, int size);
  bool TakeFromOthers(int job, int size, bool owns);
  void WaitForQuota(int job, int size);
  void WaitForSlots(int job, int size);
  void Start(int job, const NodePlacement& placement);
  // TakeWaiting makes the reason of kBackOff, once per plan, since there are many passes.
  void Wait(int job, WaitKind kind, int behind, std::string reason);

  World& world_;
  const Victims& victims_;
  Reservations& reservations_;
  const Standing standing_;          // at the beginning of the pass
  std::vector<int64_t> started_;     // by queue: slots of owners that this pass started
  std::vector<int> least_deferred_;  // by queue: the smallest size of its deferred jobs
  std::vector<bool> started_now_;    // by job
  std::vector<bool> for_cohort_;     // by job: it waits for its cohort's quota, not its queue's
  bool changed_ = false;
  // A job left a queue with quota, or left slots that a job ahead may wait for: ownership and
  // claims must be recomputed before jobs behind are served.
  bool stale_ = false;
  std::vector<Turn> deferred_;
  std::vector<std::pair<int, Waiting>> waiting_;
  std::vector<std::pair<int, int64_t>> few_spares_;  // (job, its spares)
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_PASS_H_
