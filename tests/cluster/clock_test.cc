// Wall clocks of single machines jump while a cluster of real processes trains: no attempt ends,
// nothing is delayed, and requests are carried out in time.
#include <signal.h>

#include <chrono>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr hours kMonth(30 * 24);

class WallClock : public testing::Test {
 protected:
  ClusterBed bed_{{.workers = 2, .wall_clocks = true}};
};

TEST_F(WallClock, JumpsOfTheCoordinatorsClockEndNoLeaseAndNoAttempt) {
  const TinyJob spec{.ranks = 2, .steps = 500, .every = 50};
  const std::string job = bed_.Submit(spec);
  int64_t step = 0;
  for (const milliseconds ahead :
       {milliseconds(seconds(10)), milliseconds(hours(1)), milliseconds(hours(-2)),
        milliseconds(kMonth), milliseconds(0)}) {
    bed_.ExpectStep(job, step += 80);
    bed_.SetWallClock(kCoordinatorRole, ahead);
  }
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed_.Describe(job).attempts(), 1) << bed_.Story(job);
  bed_.ExpectUndisturbedLosses(job, spec);
}

TEST_F(WallClock, ADeadWorkerIsReplacedAlthoughTheCoordinatorsClockWasSetBackByHours) {
  const TinyJob spec{.steps = 1000};  // long enough to be running when its checkpoint is replicated
  const std::string job = bed_.Submit(spec);
  bed_.ExpectStep(job, 50);
  bed_.ExpectCopied(job);  // recovery would wait for a checkpoint without replicas
  bed_.SetWallClock(kCoordinatorRole, hours(-2));
  const std::string worker = bed_.Describe(job).attempt().placements(0).worker();
  bed_.Kill(worker);
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(bed_.Describe(job).attempts(), 2) << bed_.Story(job);
  bed_.ExpectUndisturbedLosses(job, spec);
}

TEST_F(WallClock, ABackOffThatBeganUnderAWrongClockEndsAlsoAcrossARestart) {
  const TinyJob spec{.steps = 300};
  const std::string job = bed_.Submit(spec);
  v1::SetJobRestartPolicyRequest policy;
  policy.mutable_restart_policy()->set_max_without_progress(3);
  policy.mutable_restart_policy()->set_initial_backoff_ms(3000);
  policy.mutable_restart_policy()->set_max_backoff_ms(3000);
  (void)bed_.AskAbout(job, kSetJobRestartPolicy, policy);
  bed_.ExpectStep(job, 50);
  bed_.SetWallClock(kCoordinatorRole, kMonth);
  const auto ranks = bed_.LiveRanks();
  ASSERT_EQ(ranks.size(), 1u);
  SignalProcess(ranks[0].process, SIGKILL);
  bed_.ExpectState(job, v1::JOB_STATE_RECOVERING);
  bed_.Kill(kCoordinatorRole);
  bed_.SetWallClock(kCoordinatorRole, milliseconds(0));
  bed_.Restart(kCoordinatorRole);
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  bed_.ExpectUndisturbedLosses(job, spec);
}

TEST_F(WallClock, AWorkerWhoseClockIsAheadStopsThroughACheckpoint) {
  // No checkpoints except those of the stop and of the end.
  const TinyJob spec{.steps = 400, .every = 400};
  const std::string job = bed_.Submit(spec);
  bed_.ExpectStep(job, 50);
  const std::string worker = bed_.Describe(job).attempt().placements(0).worker();
  bed_.SetWallClock(worker, hours(1));
  bed_.Drain(worker);
  bed_.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const v1::Job described = bed_.Describe(job);
  ASSERT_EQ(described.recent_attempts_size(), 2) << bed_.Story(job);
  EXPECT_EQ(described.recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_STOPPED);
  EXPECT_FALSE(absl::StrContains(described.recent_attempts(0).reason(), "without a checkpoint"));
  EXPECT_GE(described.recent_attempts(1).resume().step(), 50) << bed_.Story(job);
  bed_.ExpectUndisturbedLosses(job, spec);
}

}  // namespace
}  // namespace nibble
