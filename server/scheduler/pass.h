// One walk along the line: each waiting job in turn starts, or takes from others, or claims what it
// waits for.
//
// The line: higher priority first; of one priority, jobs that were already started once and
// recover, then earlier submitted, then name. First come all that stay within their queue's own
// quota, then those that would borrow and those of queues without quota. What jobs ahead have
// claimed is not there for those behind.
//
// Passes are repeated until one changes nothing: only then is the plan one that planning again
// would not add to. Each job is changed at most once, so that they end.
//
// Ownership: refers to the world of the plan. Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_PASS_H_
#define NIBBLE_SERVER_SCHEDULER_PASS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduler/decisions.h"
#include "server/scheduler/reservations.h"
#include "server/scheduler/standing.h"
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
  // A job comes up to be started, and again to keep its spares. These have the job's place among
  // those that are queued: a job that came early may not delay those ahead by its spares.
  struct Turn {
    int job = -1;
    bool spares = false;
  };
  std::vector<Turn> Line() const;

  void Leave(int job, const NodePlacement& leaves);
  void KeepSpares(int job);

  // Rules out what needs no slots to be ruled out; puts off borrowers.
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
  // The reason of kBackOff is put in when the waiting ones are taken: passes are many.
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
  // Somebody left a queue with quota, or slots that somebody ahead may wait for: who owns and who
  // waits for what is to be found anew, before those behind are served.
  bool stale_ = false;
  std::vector<Turn> deferred_;
  std::vector<std::pair<int, Waiting>> waiting_;
  std::vector<std::pair<int, int64_t>> few_spares_;  // (job, how many it has)
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_PASS_H_
