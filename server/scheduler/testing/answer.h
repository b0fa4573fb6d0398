// A plan of a scenario, as a test asks for it.
//
// Ownership: values. Thread-safety: values.
#ifndef NIBBLE_SERVER_SCHEDULER_TESTING_ANSWER_H_
#define NIBBLE_SERVER_SCHEDULER_TESTING_ANSWER_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/scheduler/plan.h"
#include "server/scheduler/testing/scenario.h"

namespace nibble::scheduler::testing {

class Answer {
 public:
  explicit Answer(const std::string& scenario) : Answer(Scenario(scenario)) {}
  explicit Answer(const Snapshot& snapshot) {
    const absl::StatusOr<Decisions> plan = Plan(snapshot, kNow, {});
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (plan.ok()) plan_ = *plan;
  }

  // "start a on w1:4+w2:4", "shrink a for b", ...: changes without their reasons.
  std::vector<std::string> Actions() const {
    std::vector<std::string> actions;
    for (const Decision& d : plan_.actions) {
      std::string text = d.action == Action::kStart    ? "start "
                         : d.action == Action::kResize ? "resize "
                                                       : "preempt ";
      text += d.job;
      for (size_t i = 0; i < d.placement.size(); ++i) {
        absl::StrAppend(&text, i == 0 ? " on " : "+", d.placement[i].worker, ":",
                        d.placement[i].slots);
      }
      for (const std::string& other : d.waits_for) absl::StrAppend(&text, " after ", other);
      if (!d.helps.empty()) absl::StrAppend(&text, " for ", d.helps);
      actions.push_back(text);
    }
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

#endif  // NIBBLE_SERVER_SCHEDULER_TESTING_ANSWER_H_
