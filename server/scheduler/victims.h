// Who makes way for a job that has not enough slots or quota: elastic jobs shrink first, then jobs
// are preempted, as few as do it.
//
// Owners are jobs within their queue's own quota (standing.h); the others borrow, or are of queues
// without quota. An owner may take
//   - in its queue, what jobs of strictly lower priority hold;
//   - in its cohort, what others hold on borrowed quota, whatever their priority;
//   - anywhere, what jobs of strictly lower priority hold that are no owners.
// All others may take what jobs of strictly lower priority hold that are no owners. So nobody who
// is no owner displaces an owner, and no two jobs displace each other in turns.
//
// What an elastic job holds above its smallest size it can do without: it gives that back to equals
// too, and an owner gives it to equals of its queue and to jobs of strictly higher priority of any
// queue. A quota is what a queue needs; that much its jobs keep. Since nobody grows while others
// wait, what was given is not taken back in turns. Jobs that are not
// preemptible are left alone, and so are those that start or are on the move, until they run: what
// one plan gives, the next does not take back before it was of any use. Nobody takes slots for
// which somebody ahead waits.
//
// Among those it may take from: lowest priority first, then the least work since the last
// checkpoint (slots times time). No victim could be left out, and there are none at all where the
// job still would not fit.
//
// Ownership: refers to the world of the plan. Thread-safety: none.
#ifndef NIBBLE_SERVER_SCHEDULER_VICTIMS_H_
#define NIBBLE_SERVER_SCHEDULER_VICTIMS_H_

#include <cstdint>
#include <vector>

#include "server/scheduler/standing.h"
#include "server/scheduler/world.h"

namespace nibble::scheduler {

// How much a job lacks.
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

  // None where nobody helps. `owns`: the job stays within its queue's own quota. Preempted and
  // shrunk jobs in the order of the line.
  std::vector<Victim> Find(int job, const Needs& needs, bool owns, const Standing& standing) const;

 private:
  class Search;

  const World& world_;
  std::vector<int> cheapest_first_;  // that were active when the plan began
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_VICTIMS_H_
