// Finds the jobs that give slots or quota to a job that lacks them: elastic jobs shrink first, then
// as few jobs as possible are preempted.
//
// Owners are jobs within their queue's own quota (Standing); all others borrow, or are in queues
// without quota. An owner may take slots
//   - in its queue, from jobs of strictly lower priority;
//   - in its cohort, what others hold on borrowed quota, whatever their priority;
//   - anywhere, from jobs of strictly lower priority that are not owners.
// All other jobs may take from jobs of strictly lower priority that are not owners. So a borrower
// never displaces an owner, and no two jobs displace each other in turns.
//
// Slots of an elastic job above its smallest size are dispensable: the job also gives them to
// equals, and an owner gives them to equals of its queue and to jobs of strictly higher priority of
// any queue. A quota covers smallest sizes, which a queue's jobs keep. Since no job grows while
// others wait, slots are not passed back and forth.
//
// Jobs that are not preemptible are never victims. Neither are jobs that are starting or moving,
// until they run: the next plan does not take back what this one gives before it was of use. No job
// takes slots that a job ahead waits for.
//
// Candidates come by lowest priority, then by the least work since the last checkpoint (slots times
// time). Every victim is needed, and there are none if the job still would not fit.
//
// Ownership: refers to the world of the plan. Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_VICTIMS_H_
#define NIBBLE_SERVER_SCHEDULER_VICTIMS_H_

#include <cstdint>
#include <vector>

#include "server/scheduler/world.h"

namespace nibble::scheduler {

// What a job lacks.
struct Needs {
  int64_t slots = 0;   // on workers that it can use
  int64_t queue = 0;   // of its queue's limit
  int64_t cohort = 0;  // of its cohort's total
};

struct Victim {
  int job = -1;
  int keeps = 0;         // slots; 0: it is preempted
  NodePlacement leaves;  // ascending by node
};

class Victims {
 public:
  explicit Victims(const World& world);

  // Preempted and shrunk jobs in the order of the line; empty if no job helps. `owns`: the job
  // stays within its queue's own quota.
  std::vector<Victim> Find(int job, const Needs& needs, bool owns, const Standing& standing) const;

 private:
  class Search;

  const World& world_;
  std::vector<int> cheapest_first_;  // active at the beginning of the plan
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_VICTIMS_H_
