// Slots that jobs share, from the plan to the workers and back: queues, preemption, drains, growth,
// exclusion, back-off, and the words of each, with the real state and the real scheduler.
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

// Ranks of the first gang on the worker have made a checkpoint of `step` and stop as they are told.
void StoreAndStop(TestWorker& worker, int64_t step) {
  worker.Store(step);
  worker.Obey(step);
}

int32_t World(TestCoordinator& coordinator, const std::string& job) {
  return coordinator.Job(job).attempt().world();
}

TEST(SharingTest, IdleQuotaIsLentAndTakenBackThroughACheckpoint) {
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

TEST(SharingTest, AQueueWithoutACohortHoldsItsJobsToItsQuotaAndSaysSo) {
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

TEST(SharingTest, APreemptedJobGoesOnFromItsCheckpointWhenTheOtherIsDone) {
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

TEST(SharingTest, APreemptedJobThatDoesNotStopInItsGraceIsEndedWithoutACheckpoint) {
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
  // Nothing new comes to it until it is uncordoned.
  const std::string next = Submit(coordinator, "next", 2);
  coordinator.Tick();
  EXPECT_FALSE(coordinator.Job(next).has_attempt());
  v1::UncordonWorkerRequest uncordon;
  uncordon.set_worker("w1");
  ASSERT_EQ(coordinator.Do<v1::UncordonWorkerResponse>(uncordon).status(), absl::OkStatus());
  coordinator.Tick();
  EXPECT_EQ(coordinator.Job(next).attempt().placements(0).worker(), "w1");
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
  // An equal is enough: what is held above the smallest size is given back.
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
  // Where the other goes too, the words say whom it cannot have.
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

TEST(SharingTest, WhoeverWaitsIsToldWhatForAndBehindWhom) {
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

}  // namespace
}  // namespace nibble
