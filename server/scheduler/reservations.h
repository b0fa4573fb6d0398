// The claims of waiting jobs. A claim is one of these:
//   timed    the free slots and those that jobs with a known end leave by a time T suffice. The job
//            claims exactly its number of slots, those freed last before T first, so that most free
//            slots stay open to others until T.
//   untimed  they do not suffice. The job claims every free slot that it can use and every slot
//            that is freed; no job behind it can delay it, whichever job ends first.
// A later job takes open slots, or borrows claimed ones if it is known to end before they are due.
//
// The slots that jobs with a known end will leave are kept between passes; the next pass only
// undoes the claims on them.
//
// Ownership: refers to the world of the plan. Thread-safety: none; one plan owns it.
#ifndef NIBBLE_SERVER_SCHEDULER_RESERVATIONS_H_
#define NIBBLE_SERVER_SCHEDULER_RESERVATIONS_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "server/scheduler/world.h"

namespace nibble::scheduler {

struct Reservation {
  int64_t due_ms = 0;   // 0: unknown
  NodePlacement slots;  // free slots reserved for the job
};

class Reservations {
 public:
  explicit Reservations(World& world);

  // Forgets all claims.
  void BeginPass();

  // Claims `count` slots for a job that cannot start yet, for `not_before_ms` or later. During the
  // call the caller withholds the workers that the job excludes from world.open().
  Reservation Reserve(int job, int count, int64_t not_before_ms);
  // Claims up to `count` free slots as spares of an active job. Returns their number.
  int64_t KeepFree(int job, int64_t count);
  // Adds an active job, or one that this pass started, whose end may be known.
  void Expect(int job);
  // An active job has left slots before its end: they are no longer expected at that time.
  void Forget(int job, const NodePlacement& leaves);

 private:
  // (expected end, job).
  using Key = std::pair<int64_t, int>;
  // The slots that one job leaves at its end, ascending by node.
  struct Release {
    Key key;
    NodePlacement slots;
    std::vector<std::pair<int, int64_t>> by_kind;  // (kind, slots of it); the sum of `slots`

    void Set(const World& world, const NodePlacement& active);
    void Take(const World& world, NodeSlots& on, int count);
    bool empty() const;
  };
  // The slots of a pool that a job can use.
  class Usable;

  int64_t ClaimSoon(int job, const Usable& usable, int64_t most);
  void ClaimAllOpen(int job, NodePlacement& claimed);
  Release& Touch(int release);
  void Insert(std::vector<int>& order, int release);

  World& world_;
  std::vector<int> release_of_;  // by job; -1: none
  // The slots that will be left, and those of them that this pass has not claimed.
  std::vector<Release> all_, unclaimed_;
  std::vector<int> by_end_, unclaimed_by_end_;  // releases that are not empty, ascending by key
  std::vector<int> touched_;                    // where the two differ; may contain duplicates
  std::vector<Key> first_release_;  // by set of labels: no earlier release has usable slots
};

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_RESERVATIONS_H_
