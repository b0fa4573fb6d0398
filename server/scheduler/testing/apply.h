// What a controller does with a plan, in the simplest way: the same values as it would record.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SCHEDULER_TESTING_APPLY_H_
#define NIBBLE_SERVER_SCHEDULER_TESTING_APPLY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "server/scheduler/decisions.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {

int SlotsOf(const Placement& placement);
// Aborts the test's process where there is none: a plan that names one is wrong.
Job& FindJob(Snapshot& snapshot, std::string_view name);
const Job& FindJob(const Snapshot& snapshot, std::string_view name);
const Worker* FindWorker(const Snapshot& snapshot, std::string_view name);
const Queue* FindQueue(const Snapshot& snapshot, std::string_view name);

// The snapshot right after the plan was recorded.
Snapshot Apply(Snapshot snapshot, const Decisions& decisions, int64_t now_ms);

// Everything in a plan as text, one entry per line, for comparing and for failure messages.
std::string ToText(const Decisions& decisions);

}  // namespace nibble::scheduler::testing

#endif  // NIBBLE_SERVER_SCHEDULER_TESTING_APPLY_H_
