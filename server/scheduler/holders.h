// Who has what a job waits for, and what would release it: the end of a reason.
//
// Made once per plan, when nothing changes any more. Of each kind of worker and of each queue it
// keeps the few jobs that hold most, so that a line of thousands costs no walk over all jobs per
// job.
//
// Ownership: refers to the world of the plan. Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_HOLDERS_H_
#define NIBBLE_SERVER_SCHEDULER_HOLDERS_H_

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "server/scheduler/standing.h"
#include "server/scheduler/world.h"

namespace nibble::scheduler {

class Holders {
 public:
  // What a job waits for: slots that it can use, its queue's limit, its cohort's total.
  enum class Of : uint8_t { kSlots, kQueue, kCohort };

  Holders(const World& world, const Standing& standing);

  // "; queue default has no quota; held by wide (4 slots, within the quota of queue a) and old
  // (2 slots, priority 9); free when they end, or for a priority above 9".
  const std::string& WordsFor(int job, Of of);

 private:
  struct Held {
    int job = -1;
    int slots = 0;
  };
  // Those that hold most, most first; of equals the first in the line.
  struct Most {
    std::vector<Held> held;
    size_t all = 0;  // holders, count
  };

  static void Add(Held held, Most& most);
  Most HoldersOf(int job, Of of) const;
  std::string Protection(int holder, int job) const;
  std::string Words(int job, Of of) const;

  const World& world_;
  const Standing& standing_;
  std::vector<Most> by_kind_, by_queue_;
  // By labels, queue, priority and what is waited for: most that wait do so for the same.
  std::map<std::tuple<int, int, int, Of>, std::string> words_;
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_HOLDERS_H_
