// The rules that every plan must keep, checked from the snapshot and the plan alone: slow and
// simple on purpose, without the scheduler's own arithmetic. Also applies a plan to a snapshot, as
// a controller would record it.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SCHEDULER_INVARIANTS_TESTING_H_
#define NIBBLE_SERVER_SCHEDULER_INVARIANTS_TESTING_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/scheduler/plan.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {

int SlotsOf(const Placement& placement);
// Abort the test's process if there is none: a plan that names it is wrong.
Job& FindJob(Snapshot& snapshot, std::string_view name);
const Job& FindJob(const Snapshot& snapshot, std::string_view name);
const Worker* FindWorker(const Snapshot& snapshot, std::string_view name);
const Queue* FindQueue(const Snapshot& snapshot, std::string_view name);

// The snapshot right after the plan was recorded.
Snapshot Apply(Snapshot snapshot, const Decisions& decisions, int64_t now_ms);

std::string ToText(const Placement& placement);  // "w1:4+w2:4"
// The change without its reason: "start a on w1:4+w2:4 after b", "preempt b for a", ...
std::string ToText(const Decision& decision);
// The whole plan as text, one entry per line, for comparisons and failure messages.
std::string ToText(const Decisions& decisions);

// One sentence per broken rule.
std::vector<std::string> Violations(const Snapshot& before, const Decisions& plan, int64_t now_ms);

// Slots of a worker that active jobs hold, including those that jobs have not left yet.
struct WorkerUse {
  int promised = 0;
  int leaving = 0;
};
WorkerUse UseOf(const Snapshot& snapshot, const std::string& worker);

bool HasLabels(const Worker& worker, const std::vector<std::string>& labels);
bool CanUse(const Job& job, const Worker& worker);  // checks labels and exclusions, not its state
// The slots that an active job has been promised; 0 for other jobs.
int64_t PromisedTo(const Job& job);

struct QuotaUse {
  int64_t used = 0, limit = kUnlimited;
  int64_t cohort_used = 0, cohort_total = kUnlimited;
};
QuotaUse QuotaOf(const Snapshot& snapshot, const std::string& queue);
// Whether `slots` more are within the limits.
bool Allows(const QuotaUse& use, int64_t slots);

}  // namespace nibble::scheduler::testing

#endif  // NIBBLE_SERVER_SCHEDULER_INVARIANTS_TESTING_H_
