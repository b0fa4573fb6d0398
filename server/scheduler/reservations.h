// What those who wait have a claim to. The claim of a waiting job:
//   timed    the slots that jobs with a known end leave, and slots that are free already, suffice
//   by
//            a time T. It claims just as many, of those that are freed latest before T first, so
//            that as many free slots as can be stay open to others until T.
//   untimed  they do not suffice. It claims every free slot that it can use, and every slot that is
//            freed; none that wait behind it can delay it, whichever job ends first.
// A later job takes open slots, or borrows claimed ones if it is known to end before they are due.
//
// Ownership: refers to the world of the plan. Thread-safety: none; one pass owns it.
#ifndef NIBBLE_SERVER_SCHEDULER_RESERVATIONS_H_
#define NIBBLE_SERVER_SCHEDULER_RESERVATIONS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "server/scheduler/world.h"

namespace nibble::scheduler {

struct Reservation {
  int64_t due_ms = 0;   // 0: unknown
  NodePlacement slots;  // free ones that are held
};

class Reservations {
 public:
  explicit Reservations(World& world);

  // Claims `count` slots for a job that cannot start yet, for `not_before_ms` or later. Workers
  // that it excludes are to be withheld from world.open() meanwhile.
  Reservation Reserve(int job, int count, int64_t not_before_ms);
  // Claims up to `count` free slots as spares of an active job. Returns how many.
  int64_t KeepFree(int job, int64_t count);
  // An active job, or one that this pass started, whose end may be known.
  void Expect(int job);
  // An active job leaves slots before its end: nobody can wait for them until then.
  void Forget(int job, const NodePlacement& leaves);

 private:
  // (expected end, job), and what the job leaves then that nobody has claimed.
  using Key = std::pair<int64_t, int>;
  using Releases = std::map<Key, NodePlacement>;
  // Of a pool of slots, those that a job can use.
  class Usable;

  int64_t ClaimSoon(int job, const Usable& usable, int64_t most);
  void ClaimAllOpen(int job, NodePlacement& claimed);

  World& world_;
  Releases releases_;
  std::vector<Key> first_release_;  // by set of labels: none before has anything for it
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_RESERVATIONS_H_
