// What a snapshot must keep to before it is planned on.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SCHEDULER_CHECK_SNAPSHOT_H_
#define NIBBLE_SERVER_SCHEDULER_CHECK_SNAPSHOT_H_

#include "absl/status/status.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler {

// InvalidArgument naming the entity, the field, the value and the bound: for a name that is empty
// or there twice, slots outside 0..kMaxSlotsPerWorker, a quota or limit below kUnlimited, a cohort
// of a queue without quota, sizes that are no sizes, a job that is active without slots or waits
// with some, a placement that names a worker twice.
absl::Status CheckSnapshot(const Snapshot& snapshot);

}  // namespace nibble::scheduler

#endif  // NIBBLE_SERVER_SCHEDULER_CHECK_SNAPSHOT_H_
