// Wall clocks jump: by an NTP daemon, a resumed machine, a dead battery. None of it begins, ends or
// puts off anything that the coordinator decides.
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

constexpr int64_t kSecondMs = 1000;
constexpr int64_t kHourMs = 3600 * kSecondMs;
constexpr int64_t kMonthMs = 30 * 24 * kHourMs;

v1::Worker Describe(TestCoordinator& coordinator, const std::string& worker) {
  v1::DescribeWorkerRequest request;
  request.set_worker(worker);
  const auto response = coordinator.controller().Read(request);
  EXPECT_EQ(response.status(), absl::OkStatus());
  return response.ok() ? response->worker() : v1::Worker();
}

void Cancel(TestCoordinator& coordinator, const std::string& job, int64_t grace_ms) {
  v1::CancelJobRequest cancel;
  cancel.set_job(job);
  cancel.set_grace_ms(grace_ms);
  ASSERT_EQ(coordinator.Do<v1::CancelJobResponse>(cancel).status(), absl::OkStatus());
}

TEST(ClockJumpTest, NoLeaseEndsWhenTheWallClockJumpsForward) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  for (const int64_t jump_ms : {11 * kSecondMs, kHourMs, kMonthMs}) {
    coordinator.clock.JumpWall(jump_ms);
    coordinator.Tick();
    EXPECT_TRUE(Describe(coordinator, "w1").present());
    EXPECT_EQ(Describe(coordinator, "w1").last_heard_ms(), 0);
    EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
    EXPECT_EQ(coordinator.Job(job).attempt().number(), 1);
  }
}

TEST(ClockJumpTest, ADeadWorkerIsNoticedWithinItsLeaseThoughTheWallClockWasSetBack) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  coordinator.clock.JumpWall(-2 * kHourMs);
  coordinator.clock.Advance(10'000);
  coordinator.Tick();
  EXPECT_TRUE(Describe(coordinator, "w1").present());
  coordinator.clock.Advance(1);
  coordinator.Tick();
  EXPECT_FALSE(Describe(coordinator, "w1").present());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
}

TEST(ClockJumpTest, ABackOffThatBeganInAWrongMonthEndsInItsTime) {
  ControllerOptions options;
  options.lease_ms = kHourMs;
  TestCoordinator coordinator(options);
  TestWorker worker(coordinator, "w1", 1), other(coordinator, "w2", 1);
  other.Obey();
  worker.Obey();
  const std::string job = coordinator.Submit(1);
  coordinator.Tick();
  TestWorker& runs = coordinator.Job(job).attempt().placements(0).worker() == "w1" ? worker : other;
  runs.Obey(1);
  coordinator.clock.JumpWall(kMonthMs);
  runs.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
  ASSERT_EQ(runs.Report(), absl::OkStatus());
  runs.report.clear_gangs();
  coordinator.clock.JumpWall(-kMonthMs);
  const int64_t pause_ms = coordinator.Job(job).restart_policy().initial_backoff_ms();
  ASSERT_GT(pause_ms, 0);
  coordinator.clock.Advance(pause_ms - 1);
  coordinator.Tick();
  EXPECT_FALSE(coordinator.Job(job).has_attempt());
  EXPECT_THAT(coordinator.Job(job).state_reason(),
              testing::HasSubstr("backs off after a failure for 1 s more"));
  coordinator.clock.JumpWall(kMonthMs);
  coordinator.Tick();
  EXPECT_FALSE(coordinator.Job(job).has_attempt());
  coordinator.clock.JumpWall(-kMonthMs);
  coordinator.clock.Advance(kSecondMs);  // to the next plan
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).attempt().number(), 2);
}

TEST(ClockJumpTest, AStopHasItsWholeGraceAndNoMore) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  Cancel(coordinator, job, 3000);
  coordinator.clock.JumpWall(kHourMs);
  coordinator.Tick();
  EXPECT_TRUE(coordinator.Job(job).has_attempt());
  coordinator.clock.JumpWall(-2 * kHourMs);
  coordinator.clock.Advance(3000);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_CANCELLED);
}

TEST(ClockJumpTest, AWorkerIsToldHowLongAStopStillHasAndNoTimeOfAnotherMachine) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  Cancel(coordinator, job, 3000);
  worker.Ask();
  ASSERT_EQ(worker.desired.gangs(0).command(), v1::GANG_COMMAND_STOP);
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 3000);
  EXPECT_EQ(worker.desired.gangs(0).stop_by_unix_ms(), 0);
  coordinator.clock.JumpWall(kHourMs);
  coordinator.clock.Advance(1000);
  worker.Ask();
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 2000);
  // A shorter grace takes effect, a longer one does not put the end off.
  Cancel(coordinator, job, 60'000);
  worker.Ask();
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 2000);
  Cancel(coordinator, job, 500);
  worker.Ask();
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 500);
}

TEST(ClockJumpTest, ARestartMeasuresGracesAndBackOffsFromItsBeginningWhateverTheClockThenSays) {
  for (const int64_t jump_ms : {kMonthMs, -kHourMs}) {
    TestCoordinator coordinator;
    TestWorker worker(coordinator, "w1", 2);
    const std::string job = worker.RunJob(2);
    Cancel(coordinator, job, 3000);
    coordinator.clock.Advance(2000);
    coordinator.clock.JumpWall(jump_ms);
    coordinator.Restart();
    worker.Reconnect();
    ASSERT_EQ(worker.Report(), absl::OkStatus());
    EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 3000);
    coordinator.clock.Advance(2999);
    coordinator.Tick();
    EXPECT_TRUE(coordinator.Job(job).has_attempt());
    coordinator.clock.Advance(1);
    coordinator.Tick();
    EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_CANCELLED);
  }
}

TEST(ClockJumpTest, AClockThatIsSetBackBefore1970StopsNoChange) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  worker.Obey();
  coordinator.clock.JumpWall(-2 * coordinator.clock.NowUnixMs());
  const std::string job = coordinator.Submit(2);
  coordinator.Tick();
  EXPECT_TRUE(coordinator.Job(job).has_attempt());
}

}  // namespace
}  // namespace nibble
