// The scheduler: a pure function from the state of the cluster to changes and their reasons.
//
// Guarantees of every plan:
//   gangs        a job gets all slots of one allowed size, or none.
//   the line     higher priority first, then recovering jobs, then earlier submission, then name;
//                jobs within their queue's own quota come before all that borrow or have no quota,
//                and no job borrows past one that waits in its own queue.
//   claims       a waiting job has a claim to the slots that it waits for (reservations.h): no job
//                behind it takes them, unless it is known to end before the claim is due. So no job
//                behind it delays a claim, and none starves among equals. Strictly higher
//                priorities come first as long as there are any.
//   preemption   only of strictly lower priority, or of borrowers for a quota's owner, never of an
//                owner for a borrower; only if the job then fits; only jobs that are needed
//                (victims.h). Slots of an elastic owner above its smallest size go to strictly
//                higher priorities of every queue. The slots are promised to the job at once: it
//                becomes kStarting and waits for the jobs that leave, so no other job can take them
//                and a second plan preempts no further jobs.
//   elastic      jobs start with their smallest size, get more slots if no job waits for them, and
//                give them back before any job is preempted.
//   quotas       through a plan, a queue's active jobs never exceed its limit, nor a cohort's its
//                total.
//   workers      cordoned, draining and lost workers get no work; excluded ones none of that job.
//                Jobs on draining workers move through a checkpoint, or stop and queue again.
//   repeatable   the plan is a function of the arguments, whatever their order. After a plan is
//                applied, planning again changes nothing more.
//   reasons      each change and each waiting job has one, with the names of the jobs, workers or
//                queues that cause it.
//
// Cost: sorting workers and jobs, then passes over the waiting jobs. Per job, a pass costs the
// number of kinds of workers and, for a gang that spans workers, of racks of those kinds; no step
// scans all workers per job. Usually two passes suffice; each preemption in a queue with quota, or
// on hardware that a job ahead waits for, costs one more.
//
// Ownership: values. Thread-safety: a pure function.
#ifndef NIBBLE_SERVER_SCHEDULER_PLAN_H_
#define NIBBLE_SERVER_SCHEDULER_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

struct Policy {
  // Time for the checkpoint of a preempted or resized job, after which it is stopped.
  int64_t grace_ms = 60'000;
  // Minimum time between a job's last start or change of size and its growth.
  int64_t grow_interval_ms = 600'000;
};

enum class Action : uint8_t {
  kPreempt,  // checkpoint and leave; the job keeps its place in the queue
  kResize,   // checkpoint and resume on `placement`
  kStart,    // the job becomes kStarting and owns `placement` from now on
};

struct Decision {
  Action action = Action::kStart;
  std::string job;
  Placement placement;                 // of kStart and kResize, ascending by worker
  std::vector<std::string> waits_for;  // jobs that still leave slots of `placement`, ascending
  std::string helps;        // for kPreempt and a shrinking kResize: the job that benefits, or ""
  int64_t deadline_ms = 0;  // for kPreempt and kResize: the latest time at which the job is stopped
  std::string reason;
  friend bool operator==(const Decision&, const Decision&) = default;
};

enum class WaitKind : uint8_t {
  kSlots,    // too few usable free slots, or jobs ahead have claims to them
  kQuota,    // its queue or its queue's cohort has no quota left
  kBackOff,  // its backoff is not over
  kNever,    // does not fit the present cluster; not in the line
};

// A job that waits, and why.
struct Waiting {
  std::string job;
  WaitKind kind = WaitKind::kSlots;
  std::string behind;  // the job whose claim comes first, or ""
  int64_t due_ms = 0;  // when its slots are expected to be free; 0: unknown
  Placement reserved;  // free slots reserved for it, ascending by worker
  std::string reason;
  friend bool operator==(const Waiting&, const Waiting&) = default;
};

// An active job that the plan does not change although it should move, grow or get spares.
struct Remark {
  std::string job;
  std::string reason;
  friend bool operator==(const Remark&, const Remark&) = default;
};

struct Decisions {
  std::vector<Decision> actions;  // preemptions, resizes, starts; each in the order of the line
  std::vector<Waiting> waiting;   // in the order of the line
  std::vector<Remark> remarks;    // on draining, spares, growth; each in the order of the line
  friend bool operator==(const Decisions&, const Decisions&) = default;
};

// InvalidArgument: CheckSnapshot refuses the snapshot.
absl::StatusOr<Decisions> Plan(const Snapshot& snapshot, int64_t now_ms, const Policy& policy);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_PLAN_H_
