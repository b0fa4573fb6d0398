// The scheduler's reasons, as shown to users. They contain durations and no dates: the clock of a
// plan is monotonic.
//
// Ownership: Holders refers to the world of the plan. Thread-safety: pure functions of a world that
// does not change during the call; Holders: none.
#ifndef NIBBLE_SERVER_SCHEDULER_REASONS_H_
#define NIBBLE_SERVER_SCHEDULER_REASONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "server/scheduler/world.h"

namespace nibble::scheduler {

std::string DurationText(int64_t ms);               // "90 s", "5 min", "30 h"; rounded up
std::string JobText(const World& world, int job);   // "job train-7 (priority 5)"
std::string NeedText(const World& world, int job);  // "needs 8 slots with device=cuda"

// Why no plan can start the job on the present cluster; "" if one could.
std::string NeverReason(const World& world, int job);

// "needs 8 slots with device=cuda; 6 free on 2 workers; waiting behind job train-7 (priority 5)".
// `behind`: the job ahead, or -1. `due_ms`: 0 if unknown. Counts the slots of world.idle().
std::string SlotsReason(const World& world, int job, int behind, int64_t due_ms);
// `over_queue`: the queue's limit is reached; otherwise the cohort's total.
std::string QuotaReason(const World& world, int job, bool over_queue, int behind);
std::string BackoffReason(const World& world, int job);

std::string StartReason(const World& world, int job);
std::string VictimReason(const World& world, int job, int helps, bool shrinks);
std::string DrainReason(const World& world, int job, bool moves);

// Which jobs hold what a job waits for, and what would release it: the end of a reason.
//
// Made once per plan, when the plan is final. For each kind of worker and each queue it keeps the
// few jobs that hold the most slots, so that a long line does not cost a walk over all jobs per
// job.
class Holders {
 public:
  // What a job waits for: usable slots, its queue's limit, or its cohort's total.
  enum class Of : uint8_t { kSlots, kQueue, kCohort };

  Holders(const World& world, const Standing& standing);

  // "; queue default has no quota; held by wide (4 slots, within the quota of queue a) and old
  // (2 slots, priority 9); free when they end, or for a priority above 9".
  const std::string& TextFor(int job, Of of);

 private:
  struct Held {
    int job = -1;
    int slots = 0;
  };
  // The largest holders, largest first; equal ones by their place in the line.
  struct Most {
    std::vector<Held> held;
    size_t all = 0;  // holders, count
  };

  static void Add(Held held, Most& most);
  Most HoldersOf(int job, Of of) const;
  std::string Protection(int holder, int job) const;
  std::string Text(int job, Of of) const;

  const World& world_;
  const Standing& standing_;
  std::vector<Most> by_kind_, by_queue_;
  // By labels, queue, priority and Of: most waiting jobs share an entry.
  std::map<std::tuple<int, int, int, Of>, std::string> texts_;
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_REASONS_H_
