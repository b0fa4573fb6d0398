// Training continues without the coordinator, for any length of time.
#include <signal.h>

#include <chrono>
#include <map>
#include <string>

#include "common/process/process.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using std::chrono::seconds;

class CoordinatorAway : public testing::TestWithParam<int> {};

TEST_P(CoordinatorAway, NoStepIsRepeatedAndTheSameAttemptContinues) {
  ClusterBed bed({.workers = 1, .slots = 2});
  // Longer than any absence in this test.
  const std::string job = bed.Submit({.ranks = 2, .steps = 100'000, .every = 500});
  bed.ExpectStep(job, 20);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u) << bed.Story(job);

  const size_t before = bed.EventLog(job).size();
  bed.Kill("coordinator");
  // Fails if the ranks end during the absence.
  EXPECT_FALSE(AwaitAnyEnd({ranks[0].process, ranks[1].process}, seconds(GetParam())));
  bed.Restart("coordinator");
  const int64_t made = EventsOf(bed.EventLog(job), "step").back().at("step");
  if (GetParam() > 0) {
    EXPECT_GT(bed.EventLog(job).size(), before);
  }
  bed.ExpectStep(job, made + 20);
  EXPECT_TRUE(IsAlive(ranks[0].process) && IsAlive(ranks[1].process));

  const v1::Job described = bed.Describe(job);
  EXPECT_EQ(described.state(), v1::JOB_STATE_RUNNING) << bed.Story(job);
  EXPECT_EQ(described.attempt().number(), 1);
  EXPECT_EQ(described.attempts(), 1);
  (void)bed.AskAbout(job, kKillJob);
  const std::vector<nlohmann::json> log = bed.EventLog(job);
  EXPECT_EQ(EventsOf(log, "start").size(), 1u);
  std::map<int64_t, int> times;
  for (const nlohmann::json& step : EventsOf(log, "step")) ++times[step.at("step")];
  EXPECT_GT(static_cast<int64_t>(times.size()), made);
  int64_t next = 0;
  for (const auto& [step, count] : times) {
    ASSERT_EQ(step, next++);
    ASSERT_EQ(count, 1) << "step " << step;
  }
}

TEST(CoordinatorStopped, ForLongerThanALeaseLosesNoWorkerAndNoAttempt) {
  ClusterBed bed({.workers = 1, .slots = 2, .lease = ClusterBed::kShortLease});
  const std::string job = bed.Submit({.ranks = 2, .steps = 100'000, .every = 500});
  bed.ExpectStep(job, 20);
  const auto ranks = bed.LiveRanks();
  ASSERT_EQ(ranks.size(), 2u) << bed.Story(job);
  ASSERT_EQ(bed.cluster().Signal("coordinator", SIGSTOP), absl::OkStatus());
  EXPECT_FALSE(AwaitAnyEnd({ranks[0].process, ranks[1].process}, 3 * ClusterBed::kShortLease));
  const int64_t made = EventsOf(bed.EventLog(job), "step").back().at("step");
  ASSERT_EQ(bed.cluster().Signal("coordinator", SIGCONT), absl::OkStatus());
  bed.ExpectStep(job, made + 20);
  EXPECT_TRUE(IsAlive(ranks[0].process) && IsAlive(ranks[1].process));
  EXPECT_EQ(bed.Describe(job).attempts(), 1) << bed.Story(job);
  (void)bed.AskAbout(job, kKillJob);
}

INSTANTIATE_TEST_SUITE_P(ForSeconds, CoordinatorAway, testing::Values(0, 5, 20));

}  // namespace
}  // namespace nibble
