// Rules that hold of every plan, over thousands of random clusters.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "server/scheduler/plan.h"
#include "server/scheduler/testing/apply.h"
#include "server/scheduler/testing/invariants.h"
#include "server/scheduler/testing/random_snapshot.h"
#include "server/scheduler/testing/scenario.h"

namespace nibble::scheduler {
namespace {

using testing::kNow;

constexpr uint64_t kSeeds = 8000;

Snapshot ClusterOf(uint64_t seed) {
  // From clusters of two workers, where everything is in the way of everything, to larger ones.
  const int workers = 2 + static_cast<int>(seed % 9);
  return testing::RandomSnapshot(seed, {.workers = workers, .jobs = 3 * workers, .now_ms = kNow});
}

Decisions PlanOf(const Snapshot& snapshot) {
  const absl::StatusOr<Decisions> plan = Plan(snapshot, kNow, {});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : Decisions{};
}

std::string Explain(uint64_t seed, const Snapshot& snapshot, const Decisions& plan) {
  return absl::StrCat("seed ", seed, "\n", testing::ToText(snapshot), "--- plan\n",
                      testing::ToText(plan));
}

TEST(PlanProperty, NoRuleIsBrokenOnAnyCluster) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Snapshot snapshot = ClusterOf(seed);
    const Decisions plan = PlanOf(snapshot);
    const std::vector<std::string> broken = testing::Violations(snapshot, plan, kNow);
    ASSERT_TRUE(broken.empty()) << absl::StrJoin(broken, "\n") << "\n"
                                << Explain(seed, snapshot, plan);
  }
}

TEST(PlanProperty, PlanningAgainChangesNothingMore) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Snapshot snapshot = ClusterOf(seed);
    const Decisions plan = PlanOf(snapshot);
    const Decisions again = PlanOf(testing::Apply(snapshot, plan, kNow));
    ASSERT_TRUE(again.actions.empty()) << Explain(seed, snapshot, plan) << "--- again\n"
                                       << testing::ToText(again);
    ASSERT_EQ(again.waiting.size(), plan.waiting.size()) << Explain(seed, snapshot, plan);
  }
}

TEST(PlanProperty, TheOrderOfTheSnapshotMakesNoDifference) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Snapshot snapshot = ClusterOf(seed);
    const Decisions plan = PlanOf(snapshot);
    const Decisions other = PlanOf(testing::Shuffled(snapshot, seed + 1));
    ASSERT_EQ(testing::ToText(plan), testing::ToText(other)) << Explain(seed, snapshot, plan);
  }
}

// Of one queue, or of queues whose quotas do not set them apart.
bool OneLine(const Snapshot& snapshot, const Job& a, const Job& b) {
  if (a.queue == b.queue) return true;
  const Queue* of_a = testing::FindQueue(snapshot, a.queue);
  const Queue* of_b = testing::FindQueue(snapshot, b.queue);
  return of_a != nullptr && of_b != nullptr && of_a->quota == kUnlimited &&
         of_b->quota == kUnlimited;
}

// Without a job that the plan starts, those ahead of it neither start nor are due
// earlier.
TEST(PlanProperty, NobodyIsDelayedByAJobBehindIt) {
  int64_t compared = 0;
  for (uint64_t seed = 0; seed < 2 * kSeeds; ++seed) {
    const Snapshot snapshot = ClusterOf(seed);
    const Decisions plan = PlanOf(snapshot);
    for (const Decision& start : plan.actions) {
      if (start.action != Action::kStart || !start.waits_for.empty()) continue;
      const Job& behind = testing::FindJob(snapshot, start.job);
      if (behind.phase == JobPhase::kRecovering) continue;
      Snapshot without = snapshot;
      std::erase_if(without.jobs, [&start](const Job& job) { return job.name == start.job; });
      const Decisions other = PlanOf(without);
      for (const Waiting& waiting : plan.waiting) {
        const Job& ahead = testing::FindJob(snapshot, waiting.job);
        if (waiting.kind != WaitKind::kSlots || !OneLine(snapshot, ahead, behind)) continue;
        const bool before =
            ahead.priority > behind.priority ||
            (ahead.priority == behind.priority && ahead.submitted < behind.submitted);
        if (!before) continue;
        ++compared;
        const auto same =
            std::find_if(other.waiting.begin(), other.waiting.end(),
                         [&waiting](const Waiting& entry) { return entry.job == waiting.job; });
        ASSERT_NE(same, other.waiting.end())
            << waiting.job << " would start without " << start.job << "\n"
            << Explain(seed, snapshot, plan) << "--- without\n"
            << testing::ToText(other);
        const bool later =
            same->due_ms != 0 && (waiting.due_ms == 0 || waiting.due_ms > same->due_ms);
        ASSERT_FALSE(later) << waiting.job << " would be due earlier without " << start.job << "\n"
                            << Explain(seed, snapshot, plan) << "--- without\n"
                            << testing::ToText(other);
      }
    }
  }
  EXPECT_GT(compared, 200);
}

}  // namespace
}  // namespace nibble::scheduler
