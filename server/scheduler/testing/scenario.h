// Clusters and jobs in text, so that a test reads as what it is about:
//
//   worker w[1-4] slots=8 rack=r1 labels=device=cuda,fp4=yes
//   worker w5 slots=8 draining
//   queue research quota=16 cohort=all borrow=8
//   job train-7 slots=8 priority=5 at=1 needs=device=cuda prefers=fp4=yes excludes=w1 spares=2
//   job old slots=2-8 sizes=2,4,8 on=w1:4+w2:4 ends=+60s saved=-5s
//
// `name[a-b]` stands for several workers. A job with on= runs, others queue, unless a phase is
// named: queued recovering starting running resizing stopping; `fixed` says not preemptible. Keys
// of jobs: queue priority at slots sizes needs prefers excludes spares after takes ends saved
// resized on next. Times are milliseconds, or with a sign, from kNow; the suffixes s and m are
// seconds and minutes. Without any queue line there is the queue "main" without quota, and jobs are
// in it.
//
// ToText(snapshot) writes what Scenario reads.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SCHEDULER_TESTING_SCENARIO_H_
#define NIBBLE_SERVER_SCHEDULER_TESTING_SCENARIO_H_

#include <cstdint>
#include <string>

#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {

inline constexpr int64_t kNow = 1'000'000'000;

// A text that it cannot read ends the test's process with the line.
Snapshot Scenario(const std::string& text);

std::string ToText(const Snapshot& snapshot);

}  // namespace nibble::scheduler::testing

#endif  // NIBBLE_SERVER_SCHEDULER_TESTING_SCENARIO_H_
