// Which checkpoints of a job are kept, copied and worked on.
#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/checkpoint_care.h"
#include "server/state/testing.h"
#include "server/state/workers.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Two checkpoints are kept by default.
class CheckpointCareTest : public testing::Test {
 protected:
  CheckpointCareTest() {
    cluster_.AddWorkers(3, 2);
    job_ = cluster_.Submit(2);
    EXPECT_EQ(cluster_.Start(job_), absl::OkStatus());
  }

  std::vector<int64_t> Beyond() {
    std::vector<int64_t> steps;
    for (const v1::CheckpointRef& ref : BeyondRetention(cluster_.state(), job_)) {
      steps.push_back(ref.step());
    }
    return steps;
  }
  v1::CheckpointRef Ref(int64_t step) const {
    v1::CheckpointRef ref;
    ref.set_job(job_);
    ref.set_step(step);
    ref.set_attempt(1);
    return ref;
  }

  JobCare Care(int copies) {
    return CareFor(cluster_.state(), job_, copies, TakersOf(cluster_.state()));
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(CheckpointCareTest, OnlyTheNewestGoodCheckpointsAreKept) {
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  ASSERT_EQ(cluster_.Shard(job_, 40, 0), absl::OkStatus());  // still being written
  EXPECT_THAT(Beyond(), ElementsAre(10));
  ASSERT_EQ(cluster_.Run(DecideRetention(cluster_.state(), Ref(10), cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster_.state().FindCheckpoint(Ref(10)), nullptr);
  EXPECT_THAT(Beyond(), IsEmpty());
}

TEST_F(CheckpointCareTest, RetentionWaitsForTheWorkersOfANewerCheckpoint) {
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  bool waits = false;
  EXPECT_THAT(BeyondRetention(cluster_.state(), job_, &waits), testing::SizeIs(1));
  EXPECT_FALSE(waits);
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w1", 1, "gone", cluster_.caller())),
            absl::OkStatus());
  EXPECT_THAT(BeyondRetention(cluster_.state(), job_, &waits), IsEmpty());
  EXPECT_TRUE(waits);
  // Even if it was planned before.
  const MaybeUpdate update = DecideRetention(cluster_.state(), Ref(10), cluster_.caller());
  ASSERT_EQ(update.status(), absl::OkStatus());
  EXPECT_FALSE(update->has_value());
}

TEST_F(CheckpointCareTest, RetentionIsRecordedAsSuch) {
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  ASSERT_EQ(cluster_.Run(DecideRetention(cluster_.state(), Ref(10), cluster_.caller())),
            absl::OkStatus());
  ASSERT_NE(cluster_.state().FindDeletion(Ref(10)), nullptr);
  EXPECT_EQ(cluster_.state().FindDeletion(Ref(10))->kind(), v1::DELETION_KIND_RETENTION);
}

TEST_F(CheckpointCareTest, TheNewestReplicatedCheckpointStaysUntilANewerOneIsReplicated) {
  const auto copy = [this](int64_t step) {
    v1::Update update;
    update.set_sequence(cluster_.state().sequence() + 1);
    update.set_author("test");
    for (const int32_t rank : {0, 1}) {
      v1::ShardHolderSet& set = *update.add_facts()->mutable_shard_holder_set();
      *set.mutable_ref() = Ref(step);
      set.set_rank(rank);
      set.set_worker("w2");
      set.set_held(true);
    }
    return cluster_.Apply(update);
  };
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(copy(10), absl::OkStatus());
  for (const int64_t step : {20, 30, 40}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  // If w1 were lost now, only 10 would be left.
  EXPECT_THAT(Beyond(), ElementsAre(20));
  ASSERT_EQ(copy(40), absl::OkStatus());
  EXPECT_THAT(Beyond(), ElementsAre(20, 10));
}

TEST_F(CheckpointCareTest, APinnedCheckpointStays) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  v1::PinCheckpointRequest pin;
  pin.set_request_id(cluster_.Id());
  *pin.mutable_ref() = Ref(10);
  ASSERT_EQ(cluster_.Do<v1::PinCheckpointResponse>(pin).status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 30), absl::OkStatus());
  EXPECT_THAT(Beyond(), IsEmpty());
  // Even if the plan was made before the pin.
  const MaybeUpdate update = DecideRetention(cluster_.state(), Ref(10), cluster_.caller());
  ASSERT_EQ(update.status(), absl::OkStatus());
  EXPECT_FALSE(update->has_value());
}

TEST_F(CheckpointCareTest, ADamagedCheckpointIsNotCountedAndStays) {
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  ASSERT_EQ(cluster_.Apply(cluster_.Facts([&](v1::Fact& fact) {
    *fact.mutable_checkpoint_damaged()->mutable_ref() = Ref(30);
    fact.mutable_checkpoint_damaged()->set_detail("a byte is not right");
  })),
            absl::OkStatus());
  EXPECT_THAT(Beyond(), IsEmpty());
}

TEST_F(CheckpointCareTest, CheckpointsThatARollbackAbandonedTakeNoPlaceOfGoodOnes) {
  v1::SubmitJobRequest submit;
  submit.set_request_id(cluster_.Id());
  submit.set_spec_yaml(TestCluster::Spec("guarded", 2) +
                       "checkpoints: {keep_last: 2}\nguards: {rollback_margin: 20}\n");
  const auto submitted = cluster_.Do<v1::SubmitJobResponse>(submit);
  ASSERT_EQ(submitted.status(), absl::OkStatus());
  job_ = submitted->job().id();
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  for (const int64_t step : {5, 10, 20, 30, 40}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  const std::string worker = cluster_.Job(job_).attempt().placements(0).worker();
  v1::GangReport report;
  report.set_job(job_);
  report.set_attempt(1);
  report.set_phase(v1::RANK_PHASE_FAILED);
  report.set_next_step(47);
  report.set_detail("guards.spike: roll_back; step 47: a spike");
  report.set_cause(v1::FAILURE_CAUSE_GUARD_ROLLBACK);
  v1::GuardDecision& decision = *report.add_decided();
  decision.set_step(47);
  decision.set_guard("spike");
  decision.set_action("roll_back");
  decision.set_harmed_steps(1);
  ASSERT_EQ(cluster_.Run(DecideGangReport(cluster_.state(), worker, 1, report, cluster_.caller())),
            absl::OkStatus());
  ASSERT_TRUE(cluster_.state().FindCheckpoint(Ref(30))->harmed());
  ASSERT_TRUE(cluster_.state().FindCheckpoint(Ref(40))->harmed());
  ASSERT_EQ(cluster_.state().NewestGood(job_)->ref().step(), 20);
  // Good ones are 20 and 10, which stay; what is abandoned stays for people, as many.
  EXPECT_THAT(Beyond(), ElementsAre(5));
}

TEST_F(CheckpointCareTest, EachShardOfTheNewestCheckpointIsCopiedOnce) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  EXPECT_TRUE(Care(1).work.empty());
  std::vector<int32_t> ranks;
  for (const auto& [worker, work] : Care(2).work) {
    EXPECT_NE(worker, "w1");  // it has them
    for (const v1::DesiredReplica& replica : work.replicas) {
      EXPECT_EQ(replica.ref().step(), 20);
      EXPECT_THAT(replica.sources(), ElementsAre("w1:7000"));
      ranks.push_back(replica.rank());
    }
  }
  EXPECT_THAT(ranks, testing::UnorderedElementsAre(0, 1));
}

TEST_F(CheckpointCareTest, APinnedCheckpointIsCopiedTooAndAnOlderOneIsNot) {
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  v1::PinCheckpointRequest pin;
  pin.set_request_id(cluster_.Id());
  *pin.mutable_ref() = Ref(10);
  ASSERT_EQ(cluster_.Do<v1::PinCheckpointResponse>(pin).status(), absl::OkStatus());
  std::vector<int64_t> steps;
  for (const auto& [worker, work] : Care(2).work) {
    for (const v1::DesiredReplica& replica : work.replicas) steps.push_back(replica.ref().step());
  }
  EXPECT_THAT(steps, testing::UnorderedElementsAre(10, 10, 30, 30));
}

TEST_F(CheckpointCareTest, ATaskGoesToAWorkerThatHasTheShards) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  v1::VerifyCheckpointRequest verify;
  verify.set_request_id(cluster_.Id());
  *verify.mutable_ref() = Ref(10);
  ASSERT_EQ(cluster_.Do<v1::VerifyCheckpointResponse>(verify).status(), absl::OkStatus());
  auto work = Care(1).work;
  ASSERT_EQ(work.size(), 1u);
  ASSERT_EQ(work["w1"].tasks.size(), 1u);
  EXPECT_EQ(work["w1"].tasks[0].kind(), v1::CHECKPOINT_TASK_KIND_VERIFY);
}

TEST_F(CheckpointCareTest, AReportOfADeletedShardIsIgnored) {
  v1::ShardReport shard;
  *shard.mutable_ref() = Ref(10);
  EXPECT_FALSE(IsOutlived(cluster_.state(), shard));  // new
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  EXPECT_TRUE(IsOutlived(cluster_.state(), shard));
  *shard.mutable_ref() = Ref(20);
  EXPECT_FALSE(IsOutlived(cluster_.state(), shard));
  *shard.mutable_ref() = Ref(30);
  EXPECT_FALSE(IsOutlived(cluster_.state(), shard));
}

}  // namespace
}  // namespace nibble
