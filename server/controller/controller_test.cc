// The controller's answers to requests and reports.
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "common/protocol/protocol_version.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/controller.h"
#include "server/controller/reads.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

using testing::HasSubstr;

v1::SetRecipeRequest BiggerFprop(const std::string& job, int64_t expected) {
  v1::SetRecipeRequest request;
  request.set_job(job);
  request.set_expected_revision(expected);
  v1::FieldSetting& setting = *request.mutable_change()->add_set();
  setting.set_field("fprop");
  setting.set_value("bf16");
  return request;
}

TEST(ControllerTest, DescribeShowsWhyAQueuedJobIsPending) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 1);
  worker.Obey();
  const std::string job = coordinator.Submit(2);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_QUEUED);
  EXPECT_THAT(coordinator.Job(job).state_reason(), HasSubstr("2"));
  EXPECT_NE(coordinator.Job(job).state_reason(), "");
}

TEST(ControllerTest, AGangIsLaunchedWholeAndItsAttemptsAreNumbered) {
  TestCoordinator coordinator;
  TestWorker w1(coordinator, "w1", 2);
  TestWorker w2(coordinator, "w2", 2);
  w1.Obey();
  w2.Obey();
  const std::string job = coordinator.Submit(4);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_STARTING);
  w1.Obey();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_STARTING);
  w2.Obey();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(w1.desired.gangs_size(), 1);
  EXPECT_EQ(w1.desired.gangs(0).attempt(), 1);
  EXPECT_EQ(w1.desired.gangs(0).world(), 4);

  w1.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
  w1.report.mutable_gangs(0)->set_detail("rank 0: out of memory");
  ASSERT_EQ(w1.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(coordinator.Job(job).state_reason(), HasSubstr("out of memory"));
  EXPECT_EQ(w1.desired.gangs_size(), 0);
  coordinator.Tick();
  EXPECT_FALSE(coordinator.Job(job).has_attempt());  // its back-off is not over
  coordinator.clock.Advance(6'000);
  ASSERT_EQ(w1.Report(), absl::OkStatus());
  ASSERT_EQ(w2.Report(), absl::OkStatus());
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).attempt().number(), 2);
}

TEST(ControllerTest, ADesiredStateNamesTheNewestReportItReflects) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  EXPECT_EQ(worker.desired.answered(), 1);
  worker.report.set_number(6);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  EXPECT_EQ(worker.desired.answered(), 7);
  // Each stream counts separately.
  worker.Reconnect();
  worker.Fetch();
  EXPECT_EQ(worker.desired.answered(), 0);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  EXPECT_EQ(worker.desired.answered(), 1);
}

TEST(ControllerTest, AReportOfAnOldAttemptChangesNothing) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  worker.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  coordinator.clock.Advance(6'000);
  coordinator.Tick();
  ASSERT_EQ(coordinator.Job(job).attempt().number(), 2);
  // Still reports attempt 1.
  EXPECT_EQ(worker.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).attempt().number(), 2);
  EXPECT_EQ(worker.desired.gangs(0).attempt(), 2);
}

TEST(ControllerTest, AWorkerIsLostWhenItsLeaseExpiresAndItsJobRecovers) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  ASSERT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  coordinator.clock.Advance(10'000);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  coordinator.clock.Advance(1);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(coordinator.Job(job).recent_attempts(0).reason(), HasSubstr("w1"));
}

TEST(ControllerTest, SilenceWhileTheCoordinatorItselfDidNotRunEndsNoLease) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  coordinator.clock.Advance(25'000);
  coordinator.controller().NotePause(25'000);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  coordinator.clock.Advance(9'999);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  // A worker that is silent afterwards is lost; a short pause excuses nobody.
  coordinator.controller().NotePause(4'999);
  coordinator.clock.Advance(1);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
}

TEST(ControllerTest, RanksThatDoNotEndAfterPeersFailedEndTheAttemptAndTheirWorkerIsBlamed) {
  TestCoordinator coordinator({.lease_ms = 3'600'000});
  TestWorker w1(coordinator, "w1", 1);
  TestWorker w2(coordinator, "w2", 1);
  w2.Obey();
  const std::string job = w1.RunJob(2);
  w2.Obey();
  ASSERT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  w2.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
  w2.report.mutable_gangs(0)->set_cause(v1::FAILURE_CAUSE_PEER);
  ASSERT_EQ(w2.Report(), absl::OkStatus());
  ASSERT_EQ(w1.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  coordinator.clock.Advance(60'000);
  ASSERT_EQ(w1.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  coordinator.clock.Advance(1);
  ASSERT_EQ(w1.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
  ASSERT_EQ(coordinator.Job(job).blames_size(), 1);
  EXPECT_EQ(coordinator.Job(job).blames(0).worker(), "w1");
  EXPECT_EQ(coordinator.Job(job).recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_HUNG);
}

TEST(ControllerTest, AfterARestartEverythingIsKnownAndNothingRestarts) {
  TestCoordinator coordinator({.switch_wait_ms = 0});
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2, 5);
  const auto changed = coordinator.Do<v1::SetRecipeResponse>(BiggerFprop(job, 1));
  ASSERT_EQ(changed.status(), absl::OkStatus());
  coordinator.clock.Advance(60'000);  // the coordinator was away for longer than a lease
  coordinator.Restart();
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(coordinator.Job(job).latest_revision(), changed->latest_revision());
  worker.Reconnect();
  worker.Obey(6);
  EXPECT_EQ(coordinator.Job(job).attempt().number(), 1);
  EXPECT_EQ(worker.desired.gangs(0).attempt(), 1);
}

TEST(ControllerTest, AfterARestartARecipeChangeIsUnavailableUntilRanksReportTheirStep) {
  TestCoordinator coordinator({.switch_wait_ms = 0});
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2, 50);
  coordinator.Restart();
  // The first step under the change: finished steps keep their recipe.
  EXPECT_TRUE(
      absl::IsUnavailable(coordinator.Do<v1::SetRecipeResponse>(BiggerFprop(job, 1)).status()));
  EXPECT_EQ(coordinator.Job(job).latest_revision(), 1);
  worker.Reconnect();
  worker.Obey(60);
  const auto changed = coordinator.Do<v1::SetRecipeResponse>(BiggerFprop(job, 1));
  ASSERT_EQ(changed.status(), absl::OkStatus());
  EXPECT_GE(changed->first_step(), 60);
}

TEST(ControllerTest, AStaleRevisionIsRefused) {
  TestCoordinator coordinator;
  const std::string job = coordinator.Submit();
  ASSERT_EQ(coordinator.Do<v1::SetRecipeResponse>(BiggerFprop(job, 1)).status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      coordinator.Do<v1::SetRecipeResponse>(BiggerFprop(job, 1)).status()));
}

TEST(ControllerTest, ARetriedRequestGetsTheFirstAnswerEvenAfterARestart) {
  TestCoordinator coordinator;
  v1::SubmitJobRequest request;
  request.set_request_id("the-same-id");
  request.set_spec_yaml(TestCoordinator::Spec("train", 1));
  const auto first = coordinator.Do<v1::SubmitJobResponse>(request);
  ASSERT_EQ(first.status(), absl::OkStatus());
  coordinator.Restart();
  const auto again = coordinator.Do<v1::SubmitJobResponse>(request);
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(again->job().id(), first->job().id());
  request.set_spec_yaml(TestCoordinator::Spec("other", 1));
  EXPECT_TRUE(absl::IsAlreadyExists(coordinator.Do<v1::SubmitJobResponse>(request).status()));
}

TEST(ControllerTest, AStopPastItsGraceEndsWithoutACheckpoint) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  const std::string job = worker.RunJob(2);
  v1::CancelJobRequest cancel;
  cancel.set_job(job);
  cancel.set_grace_ms(3000);
  ASSERT_EQ(coordinator.Do<v1::CancelJobResponse>(cancel).status(), absl::OkStatus());
  coordinator.clock.Advance(2999);
  coordinator.Tick();
  EXPECT_TRUE(coordinator.Job(job).has_attempt());
  coordinator.clock.Advance(1);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_CANCELLED);
}

TEST(ControllerTest, AHigherPriorityTakesTheSlotsThroughACheckpoint) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  worker.Obey();
  const std::string low = coordinator.Submit(2, "low");
  coordinator.Tick();
  worker.Obey(7);
  v1::SubmitJobRequest request;
  request.set_spec_yaml(TestCoordinator::Spec("high", 2));
  request.mutable_scheduling()->set_priority(5);
  const auto high = coordinator.Do<v1::SubmitJobResponse>(request);
  ASSERT_EQ(high.status(), absl::OkStatus());
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(low).state(), v1::JOB_STATE_PREEMPTED);
  EXPECT_EQ(coordinator.Job(high->job().id()).state(), v1::JOB_STATE_QUEUED);
  worker.Obey(8);
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(high->job().id()).state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(coordinator.Job(low).state(), v1::JOB_STATE_QUEUED);
}

TEST(ControllerTest, ACheckpointIsCommittedReplicatedAndRetainedAccordingToTheSpec) {
  TestCoordinator coordinator;
  TestWorker w1(coordinator, "w1", 2);
  TestWorker w2(coordinator, "w2", 1);
  w1.Obey();
  w2.Obey();
  const std::string job =
      coordinator.Submit(2, "train", "checkpoints: {every: 10, keep_last: 1, keep_every: 20}\n");
  coordinator.Tick();
  w1.Obey(1);
  for (const int64_t step : {10, 20, 30, 40, 50}) {
    w1.Store(step);
    coordinator.Tick();
  }
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  const auto listed = coordinator.controller().Read(request);
  ASSERT_EQ(listed.status(), absl::OkStatus());
  std::vector<int64_t> steps;
  for (const auto& checkpoint : listed->checkpoints()) steps.push_back(checkpoint.ref().step());
  EXPECT_THAT(steps, testing::ElementsAre(50, 40, 20));
  ASSERT_EQ(w1.Report(), absl::OkStatus());
  EXPECT_EQ(w1.desired.dropped_size(), 4);  // two ranks of steps 10 and 30
  ASSERT_EQ(w2.Report(), absl::OkStatus());
  ASSERT_EQ(w2.desired.replicas_size(), 2);
  EXPECT_EQ(w2.desired.replicas(0).ref().step(), 50);
  EXPECT_EQ(w2.desired.replicas(0).sources(0), "w1:7000");
}

TEST(ControllerTest, AJobWaitsForTheHoldersOfItsCheckpointAndDoesNotStartOver) {
  TestCoordinator coordinator;
  TestWorker w1(coordinator, "w1", 2);
  const std::string job = w1.RunJob(2, 1);
  w1.Store(10);
  coordinator.clock.Advance(10'001);
  TestWorker w2(coordinator, "w2", 2);
  w2.Obey();
  coordinator.Tick();
  coordinator.clock.Advance(9'000);
  ASSERT_EQ(w2.Report(), absl::OkStatus());
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(coordinator.Job(job).state_reason(), HasSubstr("is with w1"));
  ASSERT_EQ(w1.Report(), absl::OkStatus());
  coordinator.Tick();
  ASSERT_TRUE(coordinator.Job(job).has_attempt());
  EXPECT_EQ(coordinator.Job(job).attempt().resume().step(), 10);
}

TEST(ControllerTest, ARankThatMakesNoStepIsHungAndNamed) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 1);
  const std::string job = worker.RunJob(1, 3);
  v1::RankHealth& rank = *worker.report.mutable_gangs(0)->mutable_ranks(0);
  rank.set_median_step_ms(10'000);
  rank.set_since_step_ms(200'000);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  worker.report.mutable_gangs(0)->mutable_ranks(0)->set_since_step_ms(200'001);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(coordinator.Job(job).recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_HUNG);
  EXPECT_THAT(coordinator.Job(job).recent_attempts(0).reason(), HasSubstr("rank 0 on w1"));
}

TEST(ControllerTest, ARankThatHangsInACollectiveIsNotBlamed) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 1);
  const std::string job = worker.RunJob(1, 3);
  v1::RankHealth& rank = *worker.report.mutable_gangs(0)->mutable_ranks(0);
  rank.set_median_step_ms(10'000);
  rank.set_since_step_ms(200'001);
  rank.set_waiting_in("all-reduce");
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(coordinator.Job(job).recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_HUNG);
  EXPECT_THAT(coordinator.Job(job).recent_attempts(0).reason(),
              HasSubstr("it waits in all-reduce"));
  EXPECT_EQ(coordinator.Job(job).blames_size(), 0);
}

TEST(ControllerTest, ARankThatHangsOutsideOfACollectiveIsBlamed) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 1);
  const std::string job = worker.RunJob(1, 3);
  v1::RankHealth& rank = *worker.report.mutable_gangs(0)->mutable_ranks(0);
  rank.set_median_step_ms(10'000);
  rank.set_since_step_ms(200'001);
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  ASSERT_EQ(coordinator.Job(job).blames_size(), 1);
  EXPECT_EQ(coordinator.Job(job).blames(0).worker(), "w1");
}

TEST(ControllerTest, ARankThatSaysWhyItWaitsDoesNotHang) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 1);
  const std::string job = worker.RunJob(1, 3);
  v1::RankHealth& rank = *worker.report.mutable_gangs(0)->mutable_ranks(0);
  rank.set_median_step_ms(10'000);
  rank.set_since_step_ms(200'001);
  worker.report.mutable_gangs(0)->set_trouble("waits for disk space");
  ASSERT_EQ(worker.Report(), absl::OkStatus());
  EXPECT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
}

TEST(ControllerTest, ALostPeerOfAnEarlierAttemptDoesNotShortenTheTimeOfItsSurvivors) {
  TestCoordinator coordinator({.lease_ms = 3'600'000});
  TestWorker w1(coordinator, "w1", 1);
  TestWorker w2(coordinator, "w2", 1);
  w2.Obey();
  const std::string job = w1.RunJob(2);
  w2.Obey();
  ASSERT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RUNNING);
  const auto lose = [](TestWorker& worker) {
    worker.report.mutable_gangs(0)->set_phase(v1::RANK_PHASE_FAILED);
    worker.report.mutable_gangs(0)->set_cause(v1::FAILURE_CAUSE_PEER);
    return worker.Report();
  };
  ASSERT_EQ(lose(w2), absl::OkStatus());
  ASSERT_EQ(w1.Report(), absl::OkStatus());  // its time begins
  ASSERT_EQ(lose(w1), absl::OkStatus());
  ASSERT_EQ(coordinator.Job(job).state(), v1::JOB_STATE_RECOVERING);
  coordinator.clock.Advance(600'000);
  coordinator.Tick();
  ASSERT_EQ(coordinator.Job(job).attempt().number(), 2);
  w2.Obey();
  ASSERT_EQ(lose(w2), absl::OkStatus());
  w1.Obey();
  ASSERT_EQ(w1.report.gangs(0).attempt(), 2);
  EXPECT_EQ(coordinator.Job(job).attempt().number(), 2);
  EXPECT_EQ(coordinator.Job(job).recent_attempts_size(), 1);
}

TEST(ControllerTest, AnOlderIncarnationIsAborted) {
  TestCoordinator coordinator;
  TestWorker old_life(coordinator, "w1", 2, 1);
  TestWorker new_life(coordinator, "w1", 2, 2);
  ASSERT_EQ(old_life.Report(), absl::OkStatus());
  ASSERT_EQ(new_life.Report(), absl::OkStatus());
  EXPECT_TRUE(absl::IsAborted(old_life.Report()));
}

TEST(ControllerTest, AWorkerOfAnotherClusterIsRefused) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  worker.report.set_cluster("elsewhere");
  EXPECT_TRUE(absl::IsFailedPrecondition(worker.Report()));
}

TEST(ControllerTest, AWorkerOfAProtocolTwoVersionsAheadIsRefusedByName) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 2);
  worker.report.mutable_identity()->set_protocol(kProtocolVersion + 1);
  EXPECT_EQ(worker.Report(), absl::OkStatus());
  worker.report.mutable_identity()->set_protocol(kProtocolVersion + 2);
  const absl::Status refused = worker.Report();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("worker w1, version"));
}

TEST(ControllerTest, AWorkerIsNotifiedWhenItsDesiredStateChanges) {
  TestCoordinator coordinator;
  TestWorker worker(coordinator, "w1", 1);
  worker.Obey();
  EXPECT_EQ(worker.notified(), 0);
  coordinator.Submit(1);
  coordinator.Tick();
  EXPECT_GE(worker.notified(), 1);
}

TEST(ControllerTest, AFailedWriteIsReportedAndStopsTheCoordinator) {
  TestCoordinator coordinator;
  coordinator.store().FailAppend(2, FaultyStore::Fault::kDiskFull);
  v1::SubmitJobRequest request;
  request.set_spec_yaml(TestCoordinator::Spec("train", 1));
  EXPECT_TRUE(absl::IsUnavailable(coordinator.Do<v1::SubmitJobResponse>(request).status()));
  EXPECT_FALSE(coordinator.stopped().ok());
  EXPECT_FALSE(coordinator.controller().Health().ok());
  coordinator.Restart();
  EXPECT_EQ(coordinator.controller().Read(v1::ListJobsRequest())->jobs_size(), 0);
}

TEST(ControllerTest, PagesOfJobsAreNewestFirstAndComplete) {
  TestCoordinator coordinator;
  for (int i = 0; i < 5; ++i) coordinator.Submit(1);
  v1::ListJobsRequest request;
  request.mutable_page()->set_size(2);
  std::vector<std::string> ids;
  for (int pages = 0; pages < 3; ++pages) {
    const auto page = coordinator.controller().Read(request);
    ASSERT_EQ(page.status(), absl::OkStatus());
    for (const v1::Job& job : page->jobs()) ids.push_back(job.id());
    request.mutable_page()->set_token(page->next_token());
  }
  EXPECT_THAT(ids, testing::ElementsAre("train-5", "train-4", "train-3", "train-2", "train-1"));
  EXPECT_EQ(request.page().token(), "");
  request.mutable_page()->set_token("workers:w1");
  EXPECT_TRUE(absl::IsInvalidArgument(coordinator.controller().Read(request).status()));
  request.mutable_page()->clear_token();
  request.mutable_page()->set_size(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(coordinator.controller().Read(request).status()));
}

TEST(ControllerTest, APageSizeAboveTheBoundIsLoweredToIt) {
  v1::PageRequest request;
  request.set_size(std::numeric_limits<int32_t>::max());
  const auto page = ReadPage(request, "jobs");
  ASSERT_EQ(page.status(), absl::OkStatus());
  EXPECT_EQ(page->size, kMaxPage);
}

}  // namespace
}  // namespace nibble
