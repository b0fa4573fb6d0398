// The scheduler: a pure function from the state of the cluster to changes and their reasons.
//
// What every plan promises:
//   gangs        a job gets all slots of one allowed size, or none.
//   the line     higher priority first, then recovering jobs, then earlier submission, then name;
//                jobs within their queue's own quota come before all that borrow or have no quota,
//                and nobody borrows past a job that waits in its own queue.
//   claims       a waiting job has a claim to what it waits for (reservations.h): no job behind it
//                takes that, unless it is known to end before the claim is due. So no job behind it
//                delays a claim, and none starves among equals. Strictly higher priorities come
//                first as long as there are any.
//   preemption   only of strictly lower priority, or of borrowers for a quota's owner, never of an
//                owner for a borrower; only if the job then fits; only jobs that are needed
//                (victims.h). What an elastic owner holds above its smallest size goes to strictly
//                higher priorities of every queue. The slots are promised to the job at once: it
//                becomes kStarting and waits for the jobs that leave, so nobody else can take them
//                and a second plan preempts nobody more.
//   elastic      jobs start with their smallest size, get more slots if nobody waits for them, and
//                give them back before anybody is preempted.
//   quotas       through a plan, a queue's active jobs never exceed its limit, nor a cohort's its
//                total.
//   workers      cordoned, draining and lost workers get no work; excluded ones none of that job.
//                Jobs on draining workers move through a checkpoint, or stop and queue again.
//   repeatable   the plan is a function of the arguments, whatever their order. After a plan is
//                applied, planning again changes nothing more.
//   reasons      each change and each waiting job has one, which names what it is about.
//
// Cost: sorting workers and jobs, then passes along the line. Per job, a pass costs the kinds of
// workers and, for a gang that spans workers, the racks of those kinds; no step scans all workers
// per job. Usually two passes suffice; each preemption in a queue with quota, or on hardware that
// somebody ahead waits for, costs one more.
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
  // Time for the checkpoint of a preempted or resized job; then it is stopped.
  int64_t grace_ms = 60'000;
  // A job grows no sooner than this after its last start or change of size.
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
  std::string helps;        // of kPreempt and a shrinking kResize: the job that benefits, or ""
  int64_t deadline_ms = 0;  // of kPreempt and kResize: when the job is stopped at the latest
  std::string reason;
  friend bool operator==(const Decision&, const Decision&) = default;
};

enum class WaitKind : uint8_t {
  kSlots,    // too few usable free slots, or jobs ahead have a claim to them
  kQuota,    // its queue or its queue's cohort has no quota left
  kBackOff,  // not before a time
  kNever,    // does not fit the cluster as it is; takes no place in the line
};

// A job that waits, and why.
struct Waiting {
  std::string job;
  WaitKind kind = WaitKind::kSlots;
  std::string behind;  // the job whose claim comes first, or ""
  int64_t due_ms = 0;  // when its slots are expected to be free; 0: unknown
  Placement reserved;  // free slots held for it, ascending by worker
  std::string reason;
  friend bool operator==(const Waiting&, const Waiting&) = default;
};

// An active job that the plan leaves alone although it should move, grow or get spares.
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
