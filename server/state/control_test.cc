// Pause, resume, cancel, kill, priority, checkpoint now.
#include <string>

#include "gtest/gtest.h"
#include "server/state/desired.h"
#include "server/state/limits.h"
#include "server/state/testing.h"

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

TEST_F(ControlTest, ARunningJobPausesWhenEveryRankStandsAndGoesOnUnderItsAttempt) {
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

TEST_F(ControlTest, APauseThatComesWhileAJobRecoversHoldsIt) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_RECOVERING);
  ASSERT_EQ(Pause(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_PAUSED);
}

TEST_F(ControlTest, OnlyAJobThatIsAskedToPauseResumes) {
  EXPECT_EQ(Resume(cluster_, job_).code(), Code::kFailedPrecondition);
  EXPECT_EQ(Resume(cluster_, "train-99").code(), Code::kNotFound);
}

TEST_F(ControlTest, CancelTakesALastCheckpointThenEnds) {
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

TEST_F(ControlTest, CancelIsNotTakenBack) {
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
  ASSERT_EQ(over(2), absl::OkStatus());  // of another attempt
  EXPECT_EQ(StateNow(), v1::JOB_STATE_RUNNING);
  ASSERT_EQ(over(1), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_CANCELLED);
  ASSERT_EQ(over(1), absl::OkStatus());  // it has ended meanwhile
}

TEST_F(ControlTest, AQueuedJobIsCancelledAtOnce) {
  ASSERT_EQ(Cancel(cluster_, job_), absl::OkStatus());
  EXPECT_EQ(StateNow(), v1::JOB_STATE_CANCELLED);
}

TEST_F(ControlTest, KillEndsNowAndTheWorkersAreToldNothingOfItAnyMore) {
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

TEST_F(ControlTest, ACheckpointIsAskedForOnlyWhereRanksLive) {
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
  ASSERT_EQ(cluster_.Run(DecidePreempt(cluster_.state(), job_, "train-9 goes first", 60'000,
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

TEST_F(ControlTest, ALaunchThatIsTakenBackQueuesAtOnce) {
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

}  // namespace
}  // namespace nibble
