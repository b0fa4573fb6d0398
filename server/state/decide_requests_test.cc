// Control of jobs (pause, resume, cancel, kill, priority, checkpoint now) and of checkpoints.
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/state/limits.h"
#include "server/state/testing.h"
#include "server/state/workers.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;

template <class Response, class Request>
absl::Status Ask(TestCluster& cluster, const std::string& job) {
  Request request;
  request.set_request_id(cluster.Id());
  request.set_job(job);
  return cluster.Do<Response>(request).status();
}
absl::Status Pause(TestCluster& cluster, const std::string& job) {
  return Ask<v1::PauseJobResponse, v1::PauseJobRequest>(cluster, job);
}
absl::Status Resume(TestCluster& cluster, const std::string& job) {
  return Ask<v1::ResumeJobResponse, v1::ResumeJobRequest>(cluster, job);
}
absl::Status Cancel(TestCluster& cluster, const std::string& job) {
  return Ask<v1::CancelJobResponse, v1::CancelJobRequest>(cluster, job);
}
absl::Status Kill(TestCluster& cluster, const std::string& job) {
  return Ask<v1::KillJobResponse, v1::KillJobRequest>(cluster, job);
}

class ControlTest : public testing::Test {
 protected:
  ControlTest() {
    cluster_.AddWorkers(2, 2);
    job_ = cluster_.Submit();
  }
  v1::JobState StateNow() const { return cluster_.StateOf(job_); }
  v1::GangCommand Command() const {
    const auto gangs = DesiredGangs(cluster_.state(), "w1", 1);
    return gangs.empty() ? v1::GANG_COMMAND_UNSPECIFIED : gangs[0].command();
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(ControlTest, AQueuedJobPausesAtOnceAndQueuesAgain) {
  ASSERT_EQ(Pause(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(cluster_.Launch(job_).code(), Code::kFailedPrecondition);
  ASSERT_EQ(Resume(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_QUEUED);
}

TEST_F(ControlTest, ARunningJobPausesWhenEveryRankHasPausedAndResumesInTheSameAttempt) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Pause(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Command(), v1::GANG_COMMAND_PAUSE);
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_PAUSED, 12), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(cluster_.Report(job_, "w2", v1::RANK_PHASE_PAUSED, 12), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_PAUSED);
  ASSERT_EQ(Resume(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(Command(), v1::GANG_COMMAND_RUN);
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_RUNNING, 12), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(cluster_.Job(job_).last_attempt(), 1);
}

TEST_F(ControlTest, APausedJobThatLostItsRanksQueuesForANewAttempt) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Pause(cluster_, job_), absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_PAUSED, 12), absl::OkStatus());
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w2", 1, "silent", cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_PAUSED);
  EXPECT_FALSE(cluster_.Job(job_).has_attempt());
  ASSERT_EQ(Resume(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_QUEUED);
  ASSERT_EQ(cluster_.Register("w2", 2, 2), absl::OkStatus());
  cluster_.now_ms += 1'000'000;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job_).attempt().number(), 2);
}

TEST_F(ControlTest, AJobThatFailsWhileItResumesDoesNotStayPaused) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Pause(cluster_, job_), absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_PAUSED, 12), absl::OkStatus());
  ASSERT_EQ(Resume(cluster_, job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 12), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_QUEUED);
}

TEST_F(ControlTest, APauseDuringRecoveryPausesTheJob) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_RECOVERING);
  ASSERT_EQ(Pause(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_PAUSED);
}

TEST_F(ControlTest, OnlyAJobWithThePauseGoalResumes) {
  EXPECT_EQ(Resume(cluster_, job_).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Resume(cluster_, "train-99").code(), Code::kNotFound);
}

TEST_F(ControlTest, CancelTakesAFinalCheckpointThenEnds) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Cancel(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(Command(), v1::GANG_COMMAND_STOP);
  EXPECT_EQ(StateNow(), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(cluster_.Checkpoint(job_, 40), absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_STOPPED, 40), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(cluster_.state().NewestGood(job_)->ref().step(), 40);
  EXPECT_EQ(Pause(cluster_, job_).code(), Code::kFailedPrecondition);
}

TEST_F(ControlTest, CancelCannotBeUndone) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Cancel(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(Pause(cluster_, job_).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Resume(cluster_, job_).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Cancel(cluster_, job_), absl::OkStatus());
}

TEST_F(ControlTest, ACancelThatTakesTooLongEndsWithoutACheckpoint) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Cancel(cluster_, job_), absl::OkStatus());
  const auto over = [this](int64_t attempt) {
    return cluster_.Run(DecideStopDeadline(cluster_.state(), job_, attempt, cluster_.caller()));
  };
  EXPECT_EQ(cluster_.Job(job_).attempt().stop_grace_ms(), kDefaultGraceMs);
  ASSERT_EQ(over(2), absl::OkStatus());  // for another attempt
  EXPECT_EQ(StateNow(), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(over(1), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_CANCELLED);
  ASSERT_EQ(over(1), absl::OkStatus());  // the attempt has already ended
}

TEST_F(ControlTest, AQueuedJobIsCancelledAtOnce) {
  ASSERT_EQ(Cancel(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_CANCELLED);
}

TEST_F(ControlTest, KillEndsAtOnceAndWorkersGetNoFurtherOrders) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Kill(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(DesiredGangs(cluster_.state(), "w1", 1).empty());
  EXPECT_EQ(Kill(cluster_, job_).code(), Code::kFailedPrecondition);
}

TEST_F(ControlTest, PriorityChangesWithinItsBounds) {
  v1::SetJobPriorityRequest request;
  request.set_request_id(cluster_.Id());
  request.set_job(job_);
  request.set_priority(1000);
  ASSERT_EQ(cluster_.Do<v1::SetJobPriorityResponse>(request).status(), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job_).scheduling().priority(), 1000);
  request.set_request_id(cluster_.Id());
  request.set_priority(1001);
  const absl::Status status = cluster_.Do<v1::SetJobPriorityResponse>(request).status();
  EXPECT_EQ(status, absl::InvalidArgumentError("priority: 1001; allowed: -1000 to 1000"));
}

TEST_F(ControlTest, ACheckpointRequestNeedsLiveRanks) {
  const auto ask = [this] {
    return Ask<v1::CheckpointJobResponse, v1::CheckpointJobRequest>(cluster_, job_);
  };
  EXPECT_EQ(ask().code(), Code::kFailedPrecondition);
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(ask(), absl::OkStatus());
  ASSERT_EQ(ask(), absl::OkStatus());
  EXPECT_EQ(DesiredGangs(cluster_.state(), "w2", 1)[0].checkpoint_request(), 2);
}

TEST_F(ControlTest, APreemptedJobQueuesAgainWithItsCheckpoint) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Run(DecidePreempt(cluster_.state(), job_, "train-9 has priority", 60'000,
                                       cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_PREEMPTED);
  EXPECT_EQ(Command(), v1::GANG_COMMAND_STOP);
  ASSERT_EQ(cluster_.Checkpoint(job_, 30), absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_STOPPED, 30), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_QUEUED);
  EXPECT_EQ(cluster_.Job(job_).restarts_without_progress(), 0);
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(job_).attempt().resume().step(), 30);
}

TEST_F(ControlTest, AnUndoneLaunchQueuesAtOnce) {
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  ASSERT_EQ(
      cluster_.Run(DecidePreempt(cluster_.state(), job_, "w1 drains", 60'000, cluster_.caller())),
      absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_QUEUED);
}

TEST_F(ControlTest, AJobThatFinishesWhileItIsPreemptedHasSucceeded) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Run(DecidePreempt(cluster_.state(), job_, "room", 60'000, cluster_.caller())),
            absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_SUCCEEDED);
}

// Checkpoints: atomic commits, pins, deletion, holders, tasks.

class CatalogueTest : public testing::Test {
 protected:
  CatalogueTest() {
    cluster_.AddWorkers(3, 2);
    job_ = cluster_.Submit();
    EXPECT_EQ(cluster_.Start(job_), absl::OkStatus());
  }
  v1::CheckpointRef Ref(int64_t step) const {
    v1::CheckpointRef ref;
    ref.set_job(job_);
    ref.set_step(step);
    ref.set_attempt(1);
    return ref;
  }
  template <class Response, class Request>
  absl::Status Ask(int64_t step) {
    Request request;
    request.set_request_id(cluster_.Id());
    request.mutable_ref()->set_job(job_);
    request.mutable_ref()->set_step(step);
    return cluster_.Do<Response>(request).status();
  }
  absl::Status Pin(int64_t step) {
    return Ask<v1::PinCheckpointResponse, v1::PinCheckpointRequest>(step);
  }
  absl::Status Unpin(int64_t step) {
    return Ask<v1::UnpinCheckpointResponse, v1::UnpinCheckpointRequest>(step);
  }
  absl::Status Delete(int64_t step) {
    return Ask<v1::DeleteCheckpointResponse, v1::DeleteCheckpointRequest>(step);
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(CatalogueTest, AResumingGangGetsEveryShardWithItsPresentHolders) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  const auto copy = [this](int32_t rank) {
    v1::ShardReport report;
    *report.mutable_ref() = Ref(10);
    report.set_rank(rank);
    report.set_world(4);
    report.set_bytes(1000);
    report.set_manifest_crc32c(cluster_.state().FindShard(Ref(10), rank)->manifest_crc32c());
    return cluster_.Run(DecideShardReport(cluster_.state(), "w3", report, cluster_.caller()));
  };
  // A replica of rank 0's shard on w3; then w1, which has the original, is lost.
  ASSERT_EQ(copy(0), absl::OkStatus());
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w1", 1, "gone", cluster_.caller())),
            absl::OkStatus());
  const auto shards = ShardSources(cluster_.state(), Ref(10));
  ASSERT_EQ(shards.size(), 4u);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(shards[static_cast<size_t>(rank)].rank(), rank);
    EXPECT_EQ(shards[static_cast<size_t>(rank)].manifest_crc32c(),
              cluster_.state().FindShard(Ref(10), rank)->manifest_crc32c());
  }
  const auto address = [this](const std::string& worker) {
    return cluster_.state().FindWorker(worker)->identity().address();
  };
  ASSERT_EQ(shards[0].sources_size(), 1);
  EXPECT_EQ(shards[0].sources(0), address("w3"));
  EXPECT_EQ(shards[1].sources_size(), 0);
  ASSERT_EQ(shards[2].sources_size(), 1);
  EXPECT_EQ(shards[2].sources(0), address("w2"));

  ASSERT_EQ(copy(1), absl::OkStatus());
  cluster_.now_ms += 3'600'000;
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  const auto gangs = DesiredGangs(cluster_.state(), "w2", 1);
  ASSERT_EQ(gangs.size(), 1u);
  EXPECT_EQ(gangs[0].resume_shards_size(), 4);
}

TEST_F(CatalogueTest, ACheckpointIsCommittedOnlyWhenEveryShardIsDurable) {
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(cluster_.Shard(job_, 10, rank), absl::OkStatus());
    EXPECT_EQ(cluster_.state().NewestGood(job_), nullptr);
    EXPECT_EQ(Pin(10).code(), Code::kNotFound);
  }
  ASSERT_EQ(cluster_.Shard(job_, 10, 3), absl::OkStatus());
  const v1::Checkpoint* const checkpoint = cluster_.state().NewestGood(job_);
  ASSERT_NE(checkpoint, nullptr);
  EXPECT_EQ(checkpoint->bytes(), 4000);
  EXPECT_EQ(cluster_.Job(job_).attempt().checkpoints(), 1);
}

TEST_F(CatalogueTest, AShardReportedTwiceCountsOnce) {
  ASSERT_EQ(cluster_.Shard(job_, 10, 0), absl::OkStatus());
  const int64_t before = cluster_.state().sequence();
  ASSERT_EQ(cluster_.Shard(job_, 10, 0), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), before);
  EXPECT_EQ(cluster_.state().FindCheckpoint(Ref(10))->durable_shards(), 1);
}

TEST_F(CatalogueTest, AShardThatDiffersFromTheFirstReportIsRefused) {
  ASSERT_EQ(cluster_.Shard(job_, 10, 0), absl::OkStatus());
  v1::ShardReport report;
  *report.mutable_ref() = Ref(10);
  report.set_world(4);
  report.set_bytes(1000);
  report.set_manifest_crc32c(99);
  EXPECT_EQ(
      cluster_.Run(DecideShardReport(cluster_.state(), "w1", report, cluster_.caller())).code(),
      Code::kFailedPrecondition);
  report.set_rank(4);
  EXPECT_EQ(
      cluster_.Run(DecideShardReport(cluster_.state(), "w1", report, cluster_.caller())).code(),
      Code::kInvalidArgument);
  report.set_rank(1);
  report.set_world(2);
  EXPECT_EQ(
      cluster_.Run(DecideShardReport(cluster_.state(), "w1", report, cluster_.caller())).code(),
      Code::kInvalidArgument);
}

TEST_F(CatalogueTest, APinnedCheckpointCannotBeDeleted) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  ASSERT_EQ(Pin(10), absl::OkStatus());
  const absl::Status refused = Delete(10);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "pinned by ann")) << refused;
  ASSERT_EQ(Unpin(10), absl::OkStatus());
  EXPECT_EQ(Unpin(10).code(), Code::kNotFound);
  ASSERT_EQ(Delete(10), absl::OkStatus());
  EXPECT_EQ(cluster_.state().FindCheckpoint(Ref(10)), nullptr);
  EXPECT_TRUE(cluster_.state().ShardsOf(Ref(10)).empty());
}

TEST_F(CatalogueTest, ACheckpointHasABoundedNumberOfPinsAndAShardOfHolders) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  for (int64_t i = 0; i <= kMaxPins; ++i) {
    cluster_.author = absl::StrCat("ann-", i);
    EXPECT_EQ(Pin(10).code(), i < kMaxPins ? Code::kOk : Code::kResourceExhausted) << i;
  }
  const v1::CheckpointShard& shard = *cluster_.state().FindShard(Ref(10), 0);
  v1::ShardReport copy;
  *copy.mutable_ref() = Ref(10);
  copy.set_world(4);
  copy.set_bytes(shard.bytes());
  copy.set_manifest_crc32c(shard.manifest_crc32c());
  ASSERT_EQ(shard.holders_size(), 1);
  for (int64_t i = 1; i <= kMaxHolders; ++i) {
    const std::string worker = absl::StrCat("holder-", i);
    ASSERT_EQ(cluster_.Register(worker, 1, 1), absl::OkStatus());
    EXPECT_EQ(
        cluster_.Run(DecideShardReport(cluster_.state(), worker, copy, cluster_.caller())).code(),
        i < kMaxHolders ? Code::kOk : Code::kResourceExhausted)
        << i;
  }
}

TEST_F(CatalogueTest, TheCheckpointThatTheLiveAttemptBeganFromCannotBeDeleted) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 15, 0, "killed",
                            v1::FAILURE_CAUSE_MACHINE),
            absl::OkStatus());
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Job(job_).attempt().resume().step(), 10);
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  const absl::Status refused = Delete(10);
  EXPECT_EQ(refused.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(refused.message(), "the job's attempt started from")) << refused;
  // The next attempt begins from the newer one.
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 25, 0, "killed",
                            v1::FAILURE_CAUSE_MACHINE),
            absl::OkStatus());
  EXPECT_EQ(Delete(10), absl::OkStatus());
}

TEST_F(CatalogueTest, ASecondHolderBeforeTheLastShardDoesNotCommit) {
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(cluster_.Shard(job_, 10, rank), absl::OkStatus());
  }
  v1::ShardReport copy;
  *copy.mutable_ref() = Ref(10);
  copy.set_world(4);
  copy.set_bytes(cluster_.state().FindShard(Ref(10), 0)->bytes());
  copy.set_manifest_crc32c(cluster_.state().FindShard(Ref(10), 0)->manifest_crc32c());
  ASSERT_EQ(cluster_.Run(DecideShardReport(cluster_.state(), "w3", copy, cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster_.state().FindShard(Ref(10), 0)->holders_size(), 2);
  EXPECT_EQ(cluster_.state().NewestGood(job_), nullptr);
  ASSERT_EQ(cluster_.Shard(job_, 10, 3), absl::OkStatus());
  EXPECT_NE(cluster_.state().NewestGood(job_), nullptr);
}

TEST_F(CatalogueTest, AnInventoryThatMissesMoreThanAnUpdateHoldsIsTakenInParts) {
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  constexpr int64_t kMost = 3;
  const auto lost = [this] {
    int64_t shards = 0;
    for (const int64_t step : {10, 20, 30}) {
      for (const v1::CheckpointShard* shard : cluster_.state().ShardsOf(Ref(step))) {
        shards += shard->holders_size() == 0;
      }
    }
    return shards;
  };
  int updates = 0;
  while (true) {
    const MaybeUpdate update =
        DecideShardInventory(cluster_.state(), "w1", {}, cluster_.caller(), kMost);
    ASSERT_EQ(update.status(), absl::OkStatus());
    if (!update->has_value()) break;
    ASSERT_LE((*update)->facts_size(), kMost);
    const int64_t before = lost();
    ASSERT_EQ(cluster_.Apply(**update), absl::OkStatus());
    ASSERT_GT(lost(), before);
    ++updates;
  }
  EXPECT_GT(updates, 1);
  EXPECT_TRUE(cluster_.state().index().ShardsOn("w1").empty());
}

TEST_F(CatalogueTest, TheCheckpointThatAJobWouldResumeFromCannotBeDeleted) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  EXPECT_EQ(Delete(10).code(), Code::kFailedPrecondition);
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(Delete(10), absl::OkStatus());
}

TEST_F(CatalogueTest, WorkersAreOrderedToDropDeletedCheckpoints) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  v1::ShardReport ten;
  *ten.mutable_ref() = Ref(10);
  v1::ShardReport twenty;
  *twenty.mutable_ref() = Ref(20);
  v1::ShardReport stranger;
  stranger.mutable_ref()->set_job("other-7");
  EXPECT_EQ(DroppedShards(cluster_.state(), {ten, twenty, stranger}).size(), 1u);
  // A live attempt may still report shards; those of a finished job's deleted checkpoint are
  // dropped.
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  ASSERT_EQ(Delete(10), absl::OkStatus());
  const auto dropped = DroppedShards(cluster_.state(), {ten, twenty});
  ASSERT_EQ(dropped.size(), 1u);
  EXPECT_EQ(dropped[0].ref().step(), 10);
}

TEST_F(CatalogueTest, ACopyAddsAHolderAndAnInventoryWithoutItRemovesIt) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  v1::ShardReport copy;
  *copy.mutable_ref() = Ref(10);
  copy.set_world(4);
  copy.set_bytes(1000);
  copy.set_manifest_crc32c(1);
  ASSERT_EQ(cluster_.Run(DecideShardReport(cluster_.state(), "w3", copy, cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster_.state().FindShard(Ref(10), 0)->holders_size(), 2);
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w1", 1, "silent", cluster_.caller())),
            absl::OkStatus());
  EXPECT_TRUE(LoadableCheckpoints(cluster_.state(), cluster_.Job(job_)).empty());
  ASSERT_EQ(cluster_.Run(DecideShardInventory(cluster_.state(), "w3", {}, cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(cluster_.state().FindShard(Ref(10), 0)->holders_size(), 1);
}

TEST_F(CatalogueTest, ATaskEndsOnce) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  v1::ExportCheckpointRequest request;
  request.set_request_id(cluster_.Id());
  *request.mutable_ref() = Ref(10);
  request.set_destination("out");
  EXPECT_EQ(cluster_.Do<v1::ExportCheckpointResponse>(request).status().code(),
            Code::kInvalidArgument);
  request.set_destination("/out");
  const auto response = cluster_.Do<v1::ExportCheckpointResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(response->task(), 1);
  v1::TaskReport report;
  *report.mutable_ref() = Ref(10);
  report.set_task(1);
  report.set_state(v1::CHECKPOINT_TASK_STATE_DONE);
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(cluster_.Run(DecideTaskReport(cluster_.state(), "w1", report, cluster_.caller())),
              absl::OkStatus());
    EXPECT_EQ(cluster_.state().FindCheckpoint(Ref(10))->tasks(0).state(),
              v1::CHECKPOINT_TASK_STATE_DONE);
    report.set_state(v1::CHECKPOINT_TASK_STATE_FAILED);
  }
  report.set_task(2);
  EXPECT_EQ(
      cluster_.Run(DecideTaskReport(cluster_.state(), "w1", report, cluster_.caller())).code(),
      Code::kNotFound);
}

TEST_F(CatalogueTest, AJobKeepsItsNewestEventsAndCountsDroppedOnes) {
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  for (int i = 0; i < 150; ++i) {
    ASSERT_EQ(Pin(10), absl::OkStatus());
    ASSERT_EQ(Unpin(10), absl::OkStatus());
  }
  const auto events = cluster_.state().EventsOf(job_);
  EXPECT_EQ(events.size(), 200u);
  EXPECT_EQ(events.front()->number(), cluster_.Job(job_).first_event());
  EXPECT_EQ(events.back()->number(), cluster_.Job(job_).next_event() - 1);
  EXPECT_GT(cluster_.Job(job_).first_event(), 100);
}

}  // namespace
}  // namespace nibble
