// What holds of every plan, checked from the snapshot and the plan alone, without the scheduler's
// own arithmetic: slow and plain on purpose.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SCHEDULER_TESTING_INVARIANTS_H_
#define NIBBLE_SERVER_SCHEDULER_TESTING_INVARIANTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "server/scheduler/decisions.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {

// One sentence per broken rule.
std::vector<std::string> Violations(const Snapshot& before, const Decisions& plan, int64_t now_ms);

// Slots of a worker that are an active job's, and that jobs still leave.
struct WorkerUse {
  int promised = 0;
  int leaving = 0;
};
WorkerUse UseOf(const Snapshot& snapshot, const std::string& worker);

bool CanUse(const Job& job, const Worker& worker);  // labels and exclusions; whatever its state
// The slots that an active job has been promised; 0 of others.
int64_t PromisedTo(const Job& job);

struct QuotaUse {
  int64_t used = 0, limit = kUnlimited;
  int64_t cohort_used = 0, cohort_total = kUnlimited;
};
QuotaUse QuotaOf(const Snapshot& snapshot, const std::string& queue);

}  // namespace nibble::scheduler::testing

#endif  // NIBBLE_SERVER_SCHEDULER_TESTING_INVARIANTS_H_
