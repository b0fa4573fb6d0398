// The scheduler: from what the cluster is, to what is to change and why.
//
// What it promises, of every plan:
//   gangs        a job gets all slots of one allowed size, or none.
//   the line     higher priority first, then jobs that recover, then earlier submitted, then name;
//                jobs within their queue's own quota come before all that borrow or have no quota,
//                and nobody borrows past a job that waits in its own queue.
//   claims       whoever waits has a claim to what it waits for (reservations.h): nobody behind it
//                takes that, unless it is known to end before the claim is due. So a job is never
//                delayed beyond its claim by one behind it, and none starves among equals. Strictly
//                higher priorities do come first for as long as there are any.
//   preemption   only of strictly lower priority, or of borrowers for a quota's owner, never of an
//                owner for one who is none; only where the job then fits; nobody who is not needed
//                (victims.h). What an elastic owner holds above its smallest size goes to strictly
//                higher priorities of every queue. The slots are promised to the job at once: it is
//                kStarting and waits for those who leave, so that nobody else can take them and a
//                second plan preempts nobody more.
//   elastic      jobs start with their smallest size, get more where nobody waits for it (grow.h),
//                and give it back before anybody is preempted.
//   quotas       active jobs of a queue never exceed its limit, those of a cohort never its total,
//                through a plan.
//   workers      cordoned, draining and lost workers get nothing; excluded ones nothing of the job.
//                Jobs on draining workers move through a checkpoint, or stop and queue again.
//   repeatable   the plan is a function of the arguments, whatever their order. With the plan
//                applied, planning again changes nothing more.
//   reasons      each change, and each job that waits, has one that names what it is about.
//
// Cost: sorting workers and jobs, then passes along the line. A pass costs, per job, the kinds of
// workers and, where a gang spans workers, the racks of those kinds; no step looks at all workers
// per job. Mostly two passes do; each preemption in a queue with quota, or on hardware for which
// somebody ahead waits, costs one more.
//
// Thread-safety: a pure function.
#ifndef NIBBLE_SERVER_SCHEDULER_PLAN_H_
#define NIBBLE_SERVER_SCHEDULER_PLAN_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/scheduler/decisions.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

// InvalidArgument of a snapshot that is not one (CheckSnapshot); nothing is decided then.
absl::StatusOr<Decisions> Plan(const Snapshot& snapshot, int64_t now_ms, const Policy& policy);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_PLAN_H_
