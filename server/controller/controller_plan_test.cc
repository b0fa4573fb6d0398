// Jobs that share slots, from the plan to the workers and back: queues, preemption, drains, growth,
// exclusion, back-off, and their reasons, with the real state and the real scheduler. Jumps of the
// wall clock, which must not begin, end or postpone anything.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Wish {
  std::string queue;
  int priority = 0;
  std::vector<int> sizes;  // empty: the spec's
};

std::string Submit(TestCoordinator& coordinator, const std::string& name, int ranks,
                   const Wish& wish = {}) {
  v1::SubmitJobRequest request;
  request.set_spec_yaml(TestCoordinator::Spec(name, ranks));
  request.mutable_scheduling()->set_queue(wish.queue);
  request.mutable_scheduling()->set_priority(wish.priority);
  for (const int size : wish.sizes) request.mutable_scheduling()->add_allowed_ranks(size);
  const auto response = coordinator.Do<v1::SubmitJobResponse>(request);
  EXPECT_EQ(response.status(), absl::OkStatus());
  return response.ok() ? response->job().id() : "";
}

void SetQueue(TestCoordinator& coordinator, const std::string& name, int quota,
              const std::string& cohort) {
  v1::SetQueueRequest request;
  request.mutable_queue()->set_name(name);
  request.mutable_queue()->set_quota_slots(quota);
  request.mutable_queue()->set_cohort(cohort);
  request.mutable_queue()->set_borrow_slots(-1);
  request.set_expected_revision(0);
  ASSERT_EQ(coordinator.Do<v1::SetQueueResponse>(request).status(), absl::OkStatus());
}

void Drain(TestCoordinator& coordinator, const std::string& worker, bool cordon_only) {
  v1::DrainWorkerRequest request;
  request.set_worker(worker);
  request.set_cordon_only(cordon_only);
  ASSERT_EQ(coordinator.Do<v1::DrainWorkerResponse>(request).status(), absl::OkStatus());
}

// Ranks of the first gang on the worker make a checkpoint at `step` and stop as ordered.
void StoreAndStop(TestWorker& worker, int64_t step) {
  worker.Store(step);
  worker.Obey(step);
}

int32_t World(TestCoordinator& coordinator, const std::string& job) {
  return coordinator.Job(job).attempt().world();
}

TEST(SharingTest, IdleQuotaIsLentAndReclaimedThroughACheckpoint) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 4);
  worker.Obey();
  SetQueue(coordinator, "research", 2, "all");
  SetQueue(coordinator, "product", 2, "all");
  const std::string borrower = Submit(coordinator, "borrower", 4, {.queue = "research"});
  coordinator.Tick();
  worker.Obey(1);
  ASSERT_EQ(coordinator.Job(borrower).state(), v1::JOB_STATE_RUNNING);
  // The owner needs no priority.
  const std::string owner = Submit(coordinator, "owner", 2, {.queue = "product", .priority = -5});
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(borrower).state(), v1::JOB_STATE_PREEMPTED);
  EXPECT_THAT(coordinator.Job(borrower).state_reason(), HasSubstr(owner));
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  StoreAndStop(worker, 5);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(owner).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(coordinator.Job(borrower).state(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(coordinator.Job(borrower).checkpoint_step(), 5);
  v1::ListQueuesRequest list;
  const auto queues = coordinator.controller().Read(list);
  ASSERT_EQ(queues.status(), absl::OkStatus());
  std::map<std::string, v1::QueueUsage> usage;
  for (const v1::QueueStatus& queue : queues->queues()) usage[queue.queue().name()] = queue.usage();
  EXPECT_EQ(usage["product"].used_slots(), 2);
  EXPECT_EQ(usage["research"].waiting_jobs(), 1);
}

TEST(SharingTest, AQueueWithoutACohortEnforcesItsQuotaAndTheReasonNamesIt) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 4);
  worker.Obey();
  SetQueue(coordinator, "small", 1, "");
  const std::string first = Submit(coordinator, "first", 1, {.queue = "small"});
  const std::string second = Submit(coordinator, "second", 1, {.queue = "small"});
  coordinator.Tick();
  EXPECT_TRUE(coordinator.Job(first).has_attempt());
  EXPECT_FALSE(coordinator.Job(second).has_attempt());
  EXPECT_THAT(coordinator.Job(second).state_reason(), HasSubstr("small"));
}

TEST(SharingTest, APreemptedJobResumesFromItsCheckpointWhenTheOtherJobIsDone) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  worker.Obey();
  const std::string low = Submit(coordinator, "low", 2);
  coordinator.Tick();
  worker.Obey(7);
  const std::string high = Submit(coordinator, "high", 2, {.priority = 5});
  coordinator.Tick();
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  ASSERT_EQ(worker.desired.gangs(0).command(), v1::GANG_COMMAND_STOP);
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), scheduler::Policy().grace_ms);
  StoreAndStop(worker, 8);
  coordinator.Tick();
  worker.Obey();
  ASSERT_EQ(coordinator.Job(high).state(), v1::JOB_STATE_RUNNING);
  EXPECT_THAT(coordinator.Job(low).state_reason(), HasSubstr("needs 2 slots"));
  worker.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_SUCCEEDED);
  worker.report.mutable_gangs(0)->set_next_step(1000);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  ASSERT_EQ(coordinator.Job(high).state(), v1::JOB_STATE_SUCCEEDED);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(low).attempt().number(), 2);
  EXPECT_EQ(coordinator.Job(low).attempt().resume().step(), 8);
  EXPECT_EQ(coordinator.Job(low).restarts_without_progress(), 0);
}

TEST(SharingTest, APreemptedJobThatDoesNotStopWithinItsGraceEndsWithoutACheckpoint) {
  ControllerOptions options;
  options.policy.grace_ms = 3000;
  TestCoordinator coordinator(options);
  TestWorker worker(coordinator, "w1", 1);
  worker.Obey();
  const std::string low = Submit(coordinator, "low", 1);
  coordinator.Tick();
  worker.Obey(7);
  const std::string high = Submit(coordinator, "high", 1, {.priority = 5});
  coordinator.Tick();
  coordinator.clock.Advance(2999);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(low).state(), v1::JOB_STATE_PREEMPTED);
  EXPECT_FALSE(coordinator.Job(high).has_attempt());
  coordinator.clock.Advance(1);
  coordinator.Tick();
  EXPECT_FALSE(coordinator.Job(low).has_attempt());
  EXPECT_TRUE(coordinator.Job(high).has_attempt());
}

TEST(SharingTest, ADrainedWorkersJobMovesAndACordonedOnesStays) {
  TestCoordinator coordinator;
  TestWorker w1(coordinator, "w1", 2);
  w1.Obey();
  const std::string job = Submit(coordinator, "train", 2);
  coordinator.Tick();
  w1.Obey(3);
  TestWorker w2(coordinator, "w2", 2);
  w2.Obey();
  Drain(coordinator, "w1", /*cordon_only=*/true);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  Drain(coordinator, "w1", /*cordon_only=*/false);
  coordinator.Tick();
  ASSERT_EQ(w1.Report(), absl::OkStatus());
  ASSERT_EQ(w1.desired.gangs(0).command(), v1::GANG_COMMAND_STOP);
  StoreAndStop(w1, 4);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).attempt().number(), 2);
  EXPECT_EQ(coordinator.Job(job).attempt().placements(0).worker(), "w2");
  EXPECT_EQ(coordinator.Job(job).attempt().resume().step(), 4);
  // It gets no new work until it is uncordoned.
  const std::string next = Submit(coordinator, "next", 2);
  coordinator.Tick();
  EXPECT_FALSE(coordinator.Job(next).has_attempt());
  v1::UncordonWorkerRequest uncordon;
  uncordon.set_worker("w1");
  ASSERT_EQ(coordinator.Do<v1::UncordonWorkerResponse>(uncordon).status(), absl::OkStatus());
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(next).attempt().placements(0).worker(), "w1");
}

// A worker joins that has a job of another store with the id of the job here.
class NamesakeTest : public testing::Test {
 protected:
  static constexpr char kStore[] = "0123456789abcdef0123456789abcdef";
  NamesakeTest() : job_(coordinator_.Submit(1)), w1_(coordinator_, "w1", 1) {
    w1_.report.set_all_shards(true);
    v1::Orphan& orphan = *w1_.report.add_orphans();
    orphan.set_job(job_);
    orphan.set_attempt(3);
    orphan.mutable_store()->set_id(kStore);
    orphan.mutable_store()->set_epoch(1);
  }
  std::string Placed() {
    const v1::Job job = coordinator_.Job(job_);
    return job.has_attempt() ? job.attempt().placements(0).worker() : "";
  }

  TestCoordinator coordinator_;
  const std::string job_;
  TestWorker w1_;
};

TEST_F(NamesakeTest, ItsRanksKeepTheJobOffTheirWorkerAloneAndAreNotStopped) {
  w1_.report.mutable_orphans(0)->set_running(true);
  w1_.Obey();
  coordinator_.Tick();
  EXPECT_EQ(Placed(), "");
  EXPECT_THAT(coordinator_.Job(job_).state_reason(),
              HasSubstr(absl::StrCat("not on w1, where another job with the id ", job_,
                                     ", of store 01234567, runs in the same directory; cancel this "
                                     "one and submit it again to give it another id")));
  TestWorker w2(coordinator_, "w2", 1);
  w2.Obey();
  coordinator_.Tick();
  EXPECT_EQ(Placed(), "w2");
  w1_.Obey();
  EXPECT_TRUE(w1_.desired.gangs().empty()) << w1_.desired.ShortDebugString();
  // Submitted again it has another id, and no such neighbour.
  const std::string other = coordinator_.Submit(1);
  EXPECT_NE(other, job_);
  coordinator_.Tick();
  EXPECT_EQ(coordinator_.Job(other).attempt().placements(0).worker(), "w1");
}

TEST_F(NamesakeTest, ItsCheckpointsKeepTheJobOffUntilTheyAreGone) {
  v1::ShardReport& shard = *w1_.report.mutable_orphans(0)->add_shards();
  *shard.mutable_store() = w1_.report.orphans(0).store();
  shard.mutable_ref()->set_job(job_);
  shard.mutable_ref()->set_step(20);
  shard.mutable_ref()->set_attempt(1);
  shard.set_world(1);
  shard.set_bytes(1000);
  w1_.Obey();
  coordinator_.Tick();
  EXPECT_EQ(Placed(), "");
  EXPECT_THAT(coordinator_.Job(job_).state_reason(),
              HasSubstr("of store 01234567, has checkpoints in the same directory"));
  w1_.report.clear_orphans();
  w1_.Obey();
  coordinator_.clock.Advance(1000);
  coordinator_.Tick();
  EXPECT_EQ(Placed(), "w1");
}

TEST(SharingTest, AnElasticJobGrowsIntoFreeSlotsAndShrinksForOthers) {
  ControllerOptions options;
  options.policy.grow_interval_ms = 1000;
  options.lease_ms = 1'000'000;
  TestCoordinator coordinator(options);
  TestWorker worker(coordinator, "w1", 4);
  worker.Obey();
  const std::string other = Submit(coordinator, "other", 2, {.priority = 1});
  const std::string elastic = Submit(coordinator, "elastic", 2, {.sizes = {2, 4}});
  coordinator.Tick();
  worker.Obey(1);
  ASSERT_EQ(World(coordinator, elastic), 2);
  v1::KillJobRequest kill;
  kill.set_job(other);
  ASSERT_EQ(coordinator.Do<v1::KillJobResponse>(kill).status(), absl::OkStatus());
  worker.Obey(2);
  coordinator.clock.Advance(2000);
  coordinator.Tick();
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  ASSERT_EQ(worker.desired.gangs(0).command(), v1::GANG_COMMAND_STOP);
  StoreAndStop(worker, 3);
  coordinator.Tick();
  EXPECT_EQ(World(coordinator, elastic), 4);
  EXPECT_EQ(coordinator.Job(elastic).attempt().resume().step(), 3);
  worker.Obey(4);
  // An equal suffices: slots above the smallest size are given back.
  const std::string equal = Submit(coordinator, "equal", 2);
  coordinator.Tick();
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  ASSERT_EQ(worker.desired.gangs(0).command(), v1::GANG_COMMAND_STOP);
  StoreAndStop(worker, 5);
  coordinator.Tick();
  EXPECT_EQ(World(coordinator, elastic), 2);
  EXPECT_EQ(coordinator.Job(elastic).attempt().resume().step(), 5);
  EXPECT_EQ(World(coordinator, equal), 2);
}

TEST(SharingTest, AWorkerThatEndedTwoAttemptsIsExcludedFlaggedAndNamed) {
  ControllerOptions options;
  options.lease_ms = 1'000'000;
  TestCoordinator coordinator(options);
  TestWorker bad(coordinator, "bad", 1), good(coordinator, "good", 1);
  bad.Obey();
  good.Obey();
  const std::string job = Submit(coordinator, "train", 1);
  for (int failure = 0; failure < 2; ++failure) {
    coordinator.clock.Advance(60'000);
    coordinator.Tick();
    bad.Obey();
    ASSERT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING) << failure;
    bad.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
    bad.report.mutable_gangs(0)->set_detail("rank 0: bus error");
    ASSERT_EQ(bad.Report(), absl::OkStatus());
    bad.report.clear_gangs();
  }
  ASSERT_EQ(coordinator.Job(job).blames_size(), 1);
  EXPECT_TRUE(coordinator.Job(job).blames(0).excluded());
  v1::DescribeWorkerRequest describe;
  describe.set_worker("bad");
  EXPECT_THAT(coordinator.controller().Read(describe)->worker().flags(0),
              AllOf(HasSubstr(job), HasSubstr("bus error")));
  coordinator.clock.Advance(60'000);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).attempt().placements(0).worker(), "good");
  // Once the other worker is gone too, the reason names the excluded one.
  good.report.clear_gangs();
  good.Obey();
  good.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
  ASSERT_EQ(good.Report(), absl::OkStatus());
  Drain(coordinator, "good", /*cordon_only=*/true);
  coordinator.clock.Advance(60'000);
  coordinator.Tick();
  EXPECT_THAT(coordinator.Job(job).state_reason(), HasSubstr("excluded for it: bad"));
}

TEST(SharingTest, BackOffGrowsAndIsVisible) {
  ControllerOptions options;
  options.lease_ms = 1'000'000;
  TestCoordinator coordinator(options);
  TestWorker w1(coordinator, "w1", 1), w2(coordinator, "w2", 1), w3(coordinator, "w3", 1);
  std::vector<TestWorker*> workers = {&w1, &w2, &w3};
  for (TestWorker* worker : workers) worker->Obey();
  const std::string job = Submit(coordinator, "train", 1);
  int64_t last = 0;
  for (int failure = 0; failure < 3; ++failure) {
    coordinator.Tick();
    for (TestWorker* worker : workers) worker->Obey();
    for (TestWorker* worker : workers) {
      if (worker->report.gangs_size() == 0) continue;
      worker->report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
      ASSERT_EQ(worker->Report(), absl::OkStatus());
      worker->report.clear_gangs();
    }
    const v1::Job described = coordinator.Job(job);
    ASSERT_EQ(described.state(), v1::JOB_STATE_RECOVERING);
    EXPECT_EQ(described.restarts_without_progress(), failure + 1);
    const int64_t pause = described.not_before_unix_ms() - coordinator.clock.NowUnixMs();
    EXPECT_EQ(pause, failure == 0 ? described.restart_policy().initial_backoff_ms() : 2 * last);
    last = pause;
    coordinator.Tick();
    EXPECT_FALSE(coordinator.Job(job).has_attempt());
    coordinator.clock.Advance(pause);
  }
}

TEST(SharingTest, PendingReasonsNameTheMissingSlotsAndTheJobAhead) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 4);
  worker.Obey();
  const std::string runs = Submit(coordinator, "runs", 2, {.priority = 9});
  coordinator.Tick();
  worker.Obey(1);
  const std::string first = Submit(coordinator, "first", 4, {.priority = 5});
  const std::string second = Submit(coordinator, "second", 4);
  const std::string never = Submit(coordinator, "never", 8);
  coordinator.Tick();
  EXPECT_THAT(coordinator.Job(first).state_reason(),
              AllOf(HasSubstr("needs 4 slots with device=cpu"), HasSubstr("2 free on 1 worker")));
  EXPECT_THAT(coordinator.Job(second).state_reason(),
              HasSubstr(absl::StrCat("waiting behind job ", first, " (priority 5)")));
  EXPECT_THAT(coordinator.Job(never).state_reason(), HasSubstr("8"));
}

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

TEST(ClockJumpTest, ADeadWorkerIsLostAfterItsLeaseAlthoughTheWallClockWasSetBack) {
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

TEST(ClockJumpTest, ABackOffThatBeganUnderAWrongWallClockEndsOnTime) {
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
  coordinator.clock.Advance(1);  // a plan is made at the end of a back-off, not at its next second
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

TEST(ClockJumpTest, AStopIsSentAsARemainingDurationNotAsATime) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  Cancel(coordinator, job, 3000);
  worker.Fetch();
  ASSERT_EQ(worker.desired.gangs(0).command(), v1::GANG_COMMAND_STOP);
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 3000);
  EXPECT_EQ(worker.desired.gangs(0).stop_by_unix_ms(), 0);
  coordinator.clock.JumpWall(kHourMs);
  coordinator.clock.Advance(1000);
  worker.Fetch();
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 2000);
  // A shorter grace takes effect; a longer one does not postpone the end.
  Cancel(coordinator, job, 60'000);
  worker.Fetch();
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 2000);
  Cancel(coordinator, job, 500);
  worker.Fetch();
  EXPECT_EQ(worker.desired.gangs(0).stop_within_ms(), 500);
}

TEST(ClockJumpTest, AfterARestartGracesAndBackOffsBeginAgainWhateverTheWallClock) {
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

TEST(ClockJumpTest, AWallClockBefore1970StopsNoChange) {
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
