// One walk along the line: each waiting job in turn starts, takes slots from others, or claims what
// it waits for.
//
// The line: higher priority first; within a priority, jobs that were started before and recover,
// then earlier submission, then name. Jobs that stay within their queue's own quota come first,
// then borrowers and jobs of queues without quota. Jobs behind cannot use what jobs ahead have
// claimed.
//
// Passes repeat until one changes nothing: only then would planning again add nothing to the plan.
// Each job changes at most once, so the passes end.
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

  // Whether it changed anything.
  bool Run();

  // In the order of world.jobs(), after Run().
  std::vector<Waiting> TakeWaiting();
  std::vector<Remark> TakeRemarks();

 private:
  // A job has a turn to start, and another to keep its spares. The second has the job's place among
  // queued jobs, so that a recovering job's spares do not delay jobs ahead.
  struct Turn {
    int job = -1;
    bool spares = false;
  };
  std::vector<Turn> Line() const;

  void Leave(int job, const NodePlacement& leaves);
  void KeepSpares(int job);

  // Refuses what can be refused without a look at slots; defers borrowers to the second round.
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
  // The reason of kBackOff is made by TakeWaiting, once: there are many passes.
  void Wait(int job, WaitKind kind, int behind, std::string reason);

  World& world_;
  const Victims& victims_;
  Reservations& reservations_;
  const Standing standing_;          // when the pass began
  std::vector<int64_t> started_;     // by queue: slots of owners that this pass started
  std::vector<int> least_deferred_;  // by queue: the smallest size of its deferred jobs
  std::vector<bool> started_now_;    // by job
  std::vector<bool> for_cohort_;     // by job: it waits for its cohort's quota, not its queue's
  bool changed_ = false;
  // A job left a queue with quota, or slots that a job ahead may wait for: ownership and claims
  // must be computed anew before jobs behind are served.
  bool stale_ = false;
  std::vector<Turn> deferred_;
  std::vector<std::pair<int, Waiting>> waiting_;
  std::vector<std::pair<int, int64_t>> few_spares_;  // (job, spares it has)
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_PASS_H_
