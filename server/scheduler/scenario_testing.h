// Clusters and jobs as text, and the plan of such a text, so that tests are easy to read:
//
//   worker w[1-4] slots=8 rack=r1 labels=device=cuda,fp4=yes
//   worker w5 slots=8 draining
//   queue research quota=16 cohort=all borrow=8
//   job train-7 slots=8 priority=5 at=1 needs=device=cuda prefers=fp4=yes excludes=w1 spares=2
//   job old slots=2-8 sizes=2,4,8 on=w1:4+w2:4 ends=+60s saved=-5s
//
// `name[a-b]` stands for several workers. A job with on= runs, others queue, unless a phase is
// named: queued recovering starting running resizing stopping; `fixed` means not preemptible. Keys
// of jobs: queue priority at slots sizes needs prefers excludes spares after takes ends saved
// resized on next. Times are milliseconds, or with a sign relative to kNow; the suffixes s and m
// are seconds and minutes. Without a queue line there is the queue "main" without quota, which all
// jobs are in.
//
// ToText(snapshot) writes what Scenario reads.
//
// Ownership: values. Thread-safety: pure functions; values.
#ifndef NIBBLE_SERVER_SCHEDULER_SCENARIO_TESTING_H_
#define NIBBLE_SERVER_SCHEDULER_SCENARIO_TESTING_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/scheduler/invariants_testing.h"
#include "server/scheduler/plan.h"
#include "server/scheduler/snapshot.h"

namespace nibble::scheduler::testing {

inline constexpr int64_t kNow = 1'000'000'000;

// Aborts the test's process, with the line, if it cannot parse the text.
Snapshot Scenario(const std::string& text);

std::string ToText(const Snapshot& snapshot);

// The plan of a scenario, at kNow and with the default policy.
class Answer {
 public:
  explicit Answer(const std::string& scenario) : Answer(Scenario(scenario)) {}
  explicit Answer(const Snapshot& snapshot) {
    const absl::StatusOr<Decisions> plan = Plan(snapshot, kNow, {});
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (plan.ok()) plan_ = *plan;
  }

  // The changes without their reasons, see ToText(decision).
  std::vector<std::string> Actions() const {
    std::vector<std::string> actions;
    for (const Decision& decision : plan_.actions) actions.push_back(ToText(decision));
    return actions;
  }

  std::string Why(const std::string& job) const {
    for (const Decision& d : plan_.actions) {
      if (d.job == job) return d.reason;
    }
    for (const Waiting& w : plan_.waiting) {
      if (w.job == job) return w.reason;
    }
    for (const Remark& r : plan_.remarks) {
      if (r.job == job) return r.reason;
    }
    return "";
  }

  const Waiting& Wait(const std::string& job) const {
    static const Waiting* const kNone = new Waiting;
    const auto at = std::find_if(plan_.waiting.begin(), plan_.waiting.end(),
                                 [&job](const Waiting& w) { return w.job == job; });
    EXPECT_NE(at, plan_.waiting.end()) << job << " does not wait";
    return at == plan_.waiting.end() ? *kNone : *at;
  }

 private:
  Decisions plan_;
};

}  // namespace nibble::scheduler::testing

#endif  // NIBBLE_SERVER_SCHEDULER_SCENARIO_TESTING_H_
