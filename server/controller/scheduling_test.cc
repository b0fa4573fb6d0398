#include "server/controller/scheduling.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using scheduler::JobPhase;
using testing::ElementsAre;
using testing::HasSubstr;

const scheduler::Job& Only(const scheduler::Snapshot& snapshot) {
  EXPECT_EQ(snapshot.jobs.size(), 1u);
  return snapshot.jobs.front();
}

scheduler::Snapshot Fill(const TestCluster& cluster, const Promises& promises = {},
                         const std::map<std::string, std::string>& held_back = {}) {
  Moments moments;
  return FillSnapshot(cluster.state(), promises, held_back, moments, /*now_ms=*/5000);
}

TEST(SchedulingTest, PhasesOfTheSnapshotFollowTheAttempt) {
  TestCluster cluster;
  cluster.AddWorkers(2, 2);
  const std::string job = cluster.Submit(4);
  EXPECT_EQ(Only(Fill(cluster)).phase, JobPhase::kQueued);
  ASSERT_EQ(cluster.Launch(job), absl::OkStatus());
  const scheduler::Snapshot starting = Fill(cluster);
  EXPECT_EQ(Only(starting).phase, JobPhase::kStarting);
  EXPECT_THAT(Only(starting).held,
              ElementsAre(scheduler::SlotsOn{"w1", 2}, scheduler::SlotsOn{"w2", 2}));
  ASSERT_EQ(cluster.ReportAll(job, v1::RANK_PHASE_RUNNING), absl::OkStatus());
  EXPECT_EQ(Only(Fill(cluster)).phase, JobPhase::kRunning);
  ASSERT_EQ(cluster.Run(DecidePreempt(cluster.state(), job, "test", 1000, cluster.caller())),
            absl::OkStatus());
  EXPECT_EQ(Only(Fill(cluster)).phase, JobPhase::kStopping);
  Promises promises;
  promises.resizing[job] = {{"w1", 2}};
  const scheduler::Snapshot resizing = Fill(cluster, promises);
  EXPECT_EQ(Only(resizing).phase, JobPhase::kResizing);
  EXPECT_THAT(Only(resizing).next, ElementsAre(scheduler::SlotsOn{"w1", 2}));
}

TEST(SchedulingTest, TimesOfTheSnapshotAreMonotonicAndBeginWhenFirstNoted) {
  TestCluster cluster;
  cluster.AddWorkers(1, 2);
  const std::string job = cluster.Submit(2);
  ASSERT_EQ(cluster.Start(job), absl::OkStatus());
  Moments moments;
  const auto at = [&](int64_t now_ms) {
    return Only(FillSnapshot(cluster.state(), {}, {}, moments, now_ms));
  };
  EXPECT_EQ(at(100).resized_ms, 100);
  EXPECT_EQ(at(200).checkpoint_ms, 100);
  ASSERT_EQ(cluster.Checkpoint(job, 10), absl::OkStatus());
  EXPECT_EQ(at(300).checkpoint_ms, 300);
  EXPECT_EQ(at(400).checkpoint_ms, 300);
  EXPECT_EQ(at(400).resized_ms, 100);
  ASSERT_EQ(cluster.Report(job, "w1", v1::RANK_PHASE_FAILED, 12), absl::OkStatus());
  const int64_t backoff_ms = cluster.Job(job).backoff_ms();
  EXPECT_EQ(at(500).not_before_ms, 500 + backoff_ms);
  EXPECT_EQ(at(900).not_before_ms, 500 + backoff_ms);
}

TEST(SchedulingTest, AJobPausedWithoutRanksWaitsForNothing) {
  TestCluster cluster;
  const std::string job = cluster.Submit(1);
  v1::PauseJobRequest pause;
  pause.set_request_id(cluster.Id());
  pause.set_job(job);
  ASSERT_EQ(cluster.Do<v1::PauseJobResponse>(pause).status(), absl::OkStatus());
  EXPECT_TRUE(Fill(cluster).jobs.empty());
}

TEST(SchedulingTest, SlotsInUseAreNotChosenAgain) {
  TestCluster cluster;
  cluster.AddWorkers(1, 4);
  const std::string job = cluster.Submit(1);
  ASSERT_EQ(cluster.Launch(job), absl::OkStatus());
  const auto slots = ChooseSlots(cluster.state(), {{"w1", 3}});
  ASSERT_TRUE(slots.has_value());
  EXPECT_THAT(slots->front().slots, ElementsAre(1, 2, 3));
  EXPECT_FALSE(ChooseSlots(cluster.state(), {{"w1", 4}}).has_value());
  EXPECT_FALSE(ChooseSlots(cluster.state(), {{"w2", 1}}).has_value());
}

TEST(SchedulingTest, APromiseIsDroppedWithItsWaitOrItsWorker) {
  TestCluster cluster;
  cluster.AddWorkers(1, 2);
  const std::string job = cluster.Submit(2);
  Promises promises;
  promises.reserved[job] = {{"w1", 2}};
  DropBroken(cluster.state(), promises);
  EXPECT_EQ(promises.reserved.size(), 1u);
  v1::DrainWorkerRequest drain;
  drain.set_request_id(cluster.Id());
  drain.set_worker("w1");
  drain.set_cordon_only(true);
  ASSERT_EQ(cluster.Do<v1::DrainWorkerResponse>(drain).status(), absl::OkStatus());
  DropBroken(cluster.state(), promises);
  EXPECT_TRUE(promises.reserved.empty());
}

TEST(SchedulingTest, AJobResumesFromTheNewestLoadableCheckpointWithARemarkIfOlder) {
  TestCluster cluster;
  cluster.AddWorkers(2, 1);
  const std::string job = cluster.Submit(1);
  EXPECT_FALSE(ChooseResume(cluster.state(), cluster.Job(job))->from.has_value());
  ASSERT_EQ(cluster.Start(job), absl::OkStatus());
  ASSERT_EQ(cluster.Checkpoint(job, 10), absl::OkStatus());
  v1::ShardReport copy;
  copy.mutable_ref()->set_job(job);
  copy.mutable_ref()->set_step(10);
  copy.mutable_ref()->set_attempt(1);
  copy.set_world(1);
  copy.set_bytes(1000);
  copy.set_manifest_crc32c(1);
  ASSERT_EQ(cluster.Run(DecideShardReport(cluster.state(), "w2", copy, cluster.caller())),
            absl::OkStatus());
  ASSERT_EQ(cluster.Checkpoint(job, 20), absl::OkStatus());
  auto resume = ChooseResume(cluster.state(), cluster.Job(job));
  ASSERT_EQ(resume.status(), absl::OkStatus());
  EXPECT_EQ(resume->from->step(), 20);
  EXPECT_EQ(resume->remark, "");
  ASSERT_EQ(cluster.Run(DecideWorkerLost(cluster.state(), "w1", 1, "test", cluster.caller())),
            absl::OkStatus());
  resume = ChooseResume(cluster.state(), cluster.Job(job));
  ASSERT_EQ(resume.status(), absl::OkStatus());
  EXPECT_EQ(resume->from->step(), 10);
  EXPECT_THAT(resume->remark, HasSubstr("is with w1"));
  EXPECT_TRUE(HeldBack(cluster.state()).empty());
  ASSERT_EQ(cluster.Run(DecideWorkerLost(cluster.state(), "w2", 1, "test", cluster.caller())),
            absl::OkStatus());
  EXPECT_TRUE(absl::IsUnavailable(ChooseResume(cluster.state(), cluster.Job(job)).status()));
  EXPECT_TRUE(HeldBack(cluster.state()).contains(job));
  EXPECT_TRUE(Fill(cluster, {}, HeldBack(cluster.state())).jobs.empty());
  // Workers may come back.
  EXPECT_EQ(DecideUnresumable(cluster.state(), job, cluster.caller()).value(), std::nullopt);
}

TEST(SchedulingTest, AJobWithOnlyDamagedCheckpointsIsHeldBackWithTheReason) {
  TestCluster cluster;
  cluster.AddWorkers(1, 1);
  const std::string job = cluster.Submit(1);
  ASSERT_EQ(cluster.Start(job), absl::OkStatus());
  ASSERT_EQ(cluster.Checkpoint(job, 10), absl::OkStatus());
  ASSERT_EQ(cluster.Checkpoint(job, 20), absl::OkStatus());
  v1::ShardReport older;
  older.mutable_ref()->set_job(job);
  older.mutable_ref()->set_step(10);
  older.mutable_ref()->set_attempt(1);
  ASSERT_EQ(cluster.Run(DecideShardInventory(cluster.state(), "w1", {older}, cluster.caller())),
            absl::OkStatus());
  EXPECT_EQ(ChooseResume(cluster.state(), cluster.Job(job))->from->step(), 10);
  ASSERT_EQ(cluster.Run(DecideShardInventory(cluster.state(), "w1", {}, cluster.caller())),
            absl::OkStatus());
  const absl::Status damaged = ChooseResume(cluster.state(), cluster.Job(job)).status();
  EXPECT_TRUE(absl::IsDataLoss(damaged));
  EXPECT_THAT(
      std::string(damaged.message()),
      HasSubstr("every checkpoint of it is damaged: the checkpoint of train-1 at step 20 "));
}

TEST(SchedulingTest, AForkOfADamagedCheckpointIsHeldBackAndNamesIt) {
  TestCluster cluster;
  cluster.AddWorkers(1, 2);
  const std::string base = cluster.Submit(1, "base");
  ASSERT_EQ(cluster.Start(base), absl::OkStatus());
  ASSERT_EQ(cluster.Checkpoint(base, 10), absl::OkStatus());
  v1::SubmitJobRequest request;
  request.set_request_id(cluster.Id());
  request.set_spec_yaml(TestCluster::Spec("tuned", 1) + "init_from: {job: base}\n");
  const auto tuned = cluster.Do<v1::SubmitJobResponse>(request);
  ASSERT_EQ(tuned.status(), absl::OkStatus());
  const v1::JobRecord& job = cluster.Job(tuned->job().id());
  EXPECT_EQ(ChooseResume(cluster.state(), job)->from->job(), base);
  v1::DamagedShard damage;
  *damage.mutable_ref() = job.origin().checkpoint();
  damage.set_holder("w1");
  damage.set_detail("chunk 3");
  ASSERT_EQ(cluster.Run(DecideDamage(cluster.state(), damage, cluster.caller())), absl::OkStatus());
  EXPECT_THAT(
      HeldBack(cluster.state()).at(tuned->job().id()),
      HasSubstr("it is to begin with the checkpoint of base-1 at step 10 (attempt 1), which "
                "is damaged"));
  ASSERT_EQ(cluster.Run(DecideUnresumable(cluster.state(), tuned->job().id(), cluster.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster.Job(tuned->job().id()).state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(cluster.Job(tuned->job().id()).state_reason(),
              HasSubstr("on w1: chunk 3; submit it anew to begin with another"));
}

}  // namespace
}  // namespace nibble
