// Rules that every plan must keep, checked on thousands of random clusters, and simulations of
// clusters over a long time: no job starves, none flaps.
#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "server/scheduler/invariants_testing.h"
#include "server/scheduler/plan.h"
#include "server/scheduler/random_snapshot_testing.h"
#include "server/scheduler/scenario_testing.h"
#include "server/scheduler/simulation_testing.h"

namespace nibble::scheduler {
namespace {

using testing::kNow;

constexpr uint64_t kSeeds = 8000;

Snapshot ClusterOf(uint64_t seed) {
  // From clusters of two workers, where jobs compete most, to larger ones.
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

TEST(PlanProperty, EveryPlanKeepsTheRules) {
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

TEST(PlanProperty, TheOrderOfTheSnapshotDoesNotMatter) {
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const Snapshot snapshot = ClusterOf(seed);
    const Decisions plan = PlanOf(snapshot);
    const Decisions other = PlanOf(testing::Shuffled(snapshot, seed + 1));
    ASSERT_EQ(testing::ToText(plan), testing::ToText(other)) << Explain(seed, snapshot, plan);
  }
}

// True if there is one queue, or the quotas do not distinguish the queues.
bool OneLine(const Snapshot& snapshot, const Job& a, const Job& b) {
  if (a.queue == b.queue) return true;
  const Queue* of_a = testing::FindQueue(snapshot, a.queue);
  const Queue* of_b = testing::FindQueue(snapshot, b.queue);
  return of_a != nullptr && of_b != nullptr && of_a->quota == kUnlimited &&
         of_b->quota == kUnlimited;
}

// Without a job that the plan starts, jobs ahead of it neither start nor are due earlier.
TEST(PlanProperty, NoJobIsDelayedByAJobBehindIt) {
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

using testing::JobHistory;
using testing::Scenario;
using testing::Simulation;
using testing::SimulationOptions;

constexpr uint64_t kSimulations = 16;
// Bounds for 60 jobs in four priorities and three borrowing queues; a flapping job has hundreds.
constexpr int kMostPreemptions = 10;
constexpr int64_t kDayMs = 86'400'000;

Job AnyJob(int index, std::mt19937_64& random, const std::string& queue, int priorities) {
  const int sizes[] = {1, 1, 2, 2, 4, 8, 12, 16};
  Job job{.name = absl::StrCat("j", index), .queue = queue};
  job.priority = static_cast<int>(random() % priorities);
  job.min_slots = sizes[random() % 8];
  job.max_slots = job.min_slots * (random() % 3 == 0 ? 2 : 1);
  if (job.max_slots > job.min_slots) job.sizes = {job.min_slots, job.max_slots};
  if (random() % 4 == 0) job.required = {"device=cuda"};
  if (job.min_slots > 8) job.required.clear();
  if (random() % 8 == 0) job.spare_slots = 1;
  return job;
}

const char kCluster[] = R"(
  worker a[1-4] slots=4 rack=r1 labels=device=cuda
  worker b[1-4] slots=4 rack=r2 labels=device=cpu
)";

const char kQueues[] = R"(
  queue red quota=12 cohort=all
  queue blue quota=12 cohort=all borrow=12
  queue green quota=8 cohort=all
)";

std::string Name(int index) { return index % 3 == 0 ? "red" : index % 3 == 1 ? "blue" : "green"; }

TEST(Simulation, EveryJobFinishesWhateverFails) {
  for (uint64_t seed = 0; seed < kSimulations; ++seed) {
    Simulation simulation(
        Scenario(absl::StrCat(kCluster, kQueues)),
        [](int index, std::mt19937_64& random) { return AnyJob(index, random, Name(index), 4); },
        {.known_ends = seed % 2 == 0}, seed);
    ASSERT_EQ(simulation.Run(kDayMs), "") << "seed " << seed;
    for (const auto& [name, history] : simulation.history()) {
      ASSERT_GT(history.finished_ms, 0) << name << " never finished, seed " << seed;
    }
  }
}

TEST(Simulation, AJobIsPreemptedAtMostOncePerStartOfAnother) {
  int64_t preemptions = 0;
  for (uint64_t seed = 0; seed < kSimulations; ++seed) {
    Simulation simulation(
        Scenario(absl::StrCat(kCluster, kQueues)),
        [](int index, std::mt19937_64& random) { return AnyJob(index, random, Name(index), 4); },
        {.failure_percent = 0, .outage_ms = 2 * kDayMs}, seed);
    ASSERT_EQ(simulation.Run(kDayMs), "") << "seed " << seed;
    for (const auto& [name, history] : simulation.history()) {
      int others_starts = 0;
      for (const std::string& other : history.preempted_for) {
        others_starts += simulation.history().at(other).starts;
      }
      ASSERT_LE(history.preempted_for_others, others_starts) << name << ", seed " << seed;
      ASSERT_LE(history.preempted_for_others, kMostPreemptions) << name << ", seed " << seed;
      ASSERT_EQ(history.starts, 1 + history.preempted_for_others)
          << name << " stopped for another reason, seed " << seed;
      preemptions += history.preempted_for_others;
    }
  }
  EXPECT_GT(preemptions, 20);
}

TEST(Simulation, EqualsNeverPreemptEachOtherWithoutQuotas) {
  for (uint64_t seed = 0; seed < kSimulations; ++seed) {
    Simulation simulation(
        Scenario(kCluster),
        [](int index, std::mt19937_64& random) { return AnyJob(index, random, "main", 1); },
        {.failure_percent = 0, .outage_ms = 2 * kDayMs}, seed);
    ASSERT_EQ(simulation.Run(kDayMs), "") << "seed " << seed;
    for (const auto& [name, history] : simulation.history()) {
      ASSERT_EQ(history.starts, 1) << name << ", seed " << seed;
    }
  }
}

// A gang as large as the cluster waits among an endless stream of small jobs.
TEST(Simulation, AGangOfTheWholeClusterDoesNotStarveAmongSmallJobs) {
  for (const bool known_ends : {false, true}) {
    Simulation simulation(
        Scenario(kCluster),
        [](int index, std::mt19937_64&) {
          Job job{.name = absl::StrCat("j", index), .queue = "main"};
          job.min_slots = job.max_slots = index == 40 ? 32 : 1;
          return job;
        },
        {.jobs = 600,
         .arrival_ms = 20'000,
         .failure_percent = 0,
         .outage_ms = 2 * kDayMs,
         .known_ends = known_ends},
        7);
    ASSERT_EQ(simulation.Run(kDayMs), "");
    const JobHistory& gang = simulation.history().at("j40");
    // The smaller jobs that run when it is submitted end within work_ms.
    EXPECT_LT(gang.finished_ms - gang.submitted_ms, 4 * SimulationOptions().work_ms);
    EXPECT_EQ(gang.preempted_for_others, 0);
  }
}

TEST(Simulation, GrowthIsAtMostOncePerInterval) {
  int grows = 0;
  for (uint64_t seed = 0; seed < kSimulations / 4; ++seed) {
    Simulation simulation(
        Scenario(kCluster),
        [](int index, std::mt19937_64& random) {
          Job job = AnyJob(index, random, "main", 2);
          job.max_slots = job.min_slots * 4;
          job.sizes = {job.min_slots, job.min_slots * 2, job.min_slots * 4};
          return job;
        },
        {.arrival_ms = 120'000, .work_ms = 6'000'000}, seed);
    ASSERT_EQ(simulation.Run(3 * kDayMs), "") << "seed " << seed;
    for (const auto& [name, history] : simulation.history()) {
      const int64_t life_ms = history.finished_ms - history.submitted_ms;
      ASSERT_LE(history.grows, 1 + life_ms / Policy().grow_interval_ms) << name << " " << seed;
      grows += history.grows;
    }
  }
  EXPECT_GT(grows, 20);
}

}  // namespace

}  // namespace nibble::scheduler
