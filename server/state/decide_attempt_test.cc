// Attempts: fencing, restarts, back-off, exclusion; and whose fault the end of an attempt is.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/testing.h"
#include "server/state/views.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;

class AttemptTest : public testing::Test {
 protected:
  AttemptTest() {
    cluster_.AddWorkers(4, 2);
    job_ = cluster_.Submit();
  }
  const v1::JobRecord& Job() const { return cluster_.Job(job_); }
  // Launches an attempt, which runs and then fails on the worker.
  void FailOnce(const std::string& worker) {
    cluster_.now_ms += kMaxBackoffMs;
    ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
    ASSERT_EQ(cluster_.Report(job_, worker, v1::RANK_PHASE_FAILED, 5, 0, "rank 1: NaN"),
              absl::OkStatus());
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(AttemptTest, AReportFromAnOldAttemptIsRefusedNamingBothNumbers) {
  FailOnce("w1");
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  const absl::Status status = cluster_.Report(job_, "w1", v1::RANK_PHASE_SUCCEEDED, 1000, 1);
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_TRUE(absl::StrContains(status.message(), "1 of train-1 is over")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "2")) << status;
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RUNNING);
}

TEST_F(AttemptTest, AJobThatStoppedEarlyHasSucceededAndSaysAtWhichStepAndWhy) {
  v1::SubmitJobRequest request;
  request.set_request_id(cluster_.Id());
  request.set_spec_yaml(TestCluster::Spec("early", 4) + "early_stop: {patience: 2}\n");
  const auto response = cluster_.Do<v1::SubmitJobResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  const std::string early = response->job().id();
  ASSERT_EQ(cluster_.Start(early), absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(early, v1::RANK_PHASE_SUCCEEDED, 300), absl::OkStatus());
  EXPECT_EQ(cluster_.StateOf(early), v1::JOB_STATE_SUCCEEDED);
  const std::string reason =
      "stopped early before step 300 of 1000: the validation loss no longer improves";
  const v1::JobRecord& job = cluster_.Job(early);
  EXPECT_EQ(job.state_reason(), reason);
  ASSERT_EQ(job.recent_attempts_size(), 1);
  EXPECT_EQ(job.recent_attempts(0).reason(), reason);
  EXPECT_EQ(ViewJob(cluster_.state(), job, {}, "").next_step(), 300);
}

TEST_F(AttemptTest, AReportFromAnAttemptThatNeverWasIsRefused) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  EXPECT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_PAUSED, 0, 2).code(), Code::kAborted);
}

TEST_F(AttemptTest, LateShardFromOldAttemptIsRefused) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  for (int32_t rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(cluster_.Shard(job_, 10, rank), absl::OkStatus());
  }
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED), absl::OkStatus());
  EXPECT_TRUE(cluster_.state().CheckpointsOf(job_).empty());
  const absl::Status late = cluster_.Shard(job_, 10, 3, 1);
  EXPECT_EQ(late.code(), Code::kAborted);
  EXPECT_TRUE(absl::StrContains(late.message(), "attempt: 1")) << late;
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  EXPECT_EQ(cluster_.Shard(job_, 10, 3, 1).code(), Code::kAborted);
  EXPECT_EQ(cluster_.state().NewestGood(job_), nullptr);
}

TEST_F(AttemptTest, NumbersGrowAndAreNeverUsedAgain) {
  for (int64_t number = 1; number <= 3; ++number) {
    cluster_.now_ms += kMaxBackoffMs;
    ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
    EXPECT_EQ(Job().attempt().number(), number);
    ASSERT_EQ(cluster_.Run(DecidePreempt(cluster_.state(), job_, "room", 0, cluster_.caller())),
              absl::OkStatus());
    ASSERT_EQ(cluster_.Run(DecideStopDeadline(cluster_.state(), job_, Job().attempt().number(),
                                              cluster_.caller())),
              absl::OkStatus());
    EXPECT_EQ(Job().state(), v1::JOB_STATE_QUEUED);
  }
}

TEST_F(AttemptTest, AJobIsGivenUpAfterTooManyFailuresWithoutACheckpoint) {
  for (const char* worker : {"w1", "w2", "w1"}) {
    FailOnce(worker);
    EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  }
  FailOnce("w2");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job().state_reason(),
            "given up after 4 failures in a row without a new checkpoint; the last: ranks on w2 "
            "failed: rank 1: NaN");
}

TEST_F(AttemptTest, ANewCheckpointSetsTheCountBack) {
  FailOnce("w1");
  FailOnce("w2");
  EXPECT_EQ(Job().restarts_without_progress(), 2);
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 7), absl::OkStatus());
  EXPECT_EQ(Job().restarts_without_progress(), 0);
}

TEST_F(AttemptTest, CheckpointsBeyondWhereAnAttemptBeginsAreLeftAndNotGoneOnFrom) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 35), absl::OkStatus());
  v1::CheckpointRef ref;
  ref.set_job(job_);
  ref.set_step(10);
  ref.set_attempt(1);
  // As if the later checkpoints were on an absent worker.
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Run(DecideLaunch(cluster_.state(), job_, {{"w1", {0, 1}}, {"w2", {0, 1}}}, ref,
                                      "", cluster_.caller())),
            absl::OkStatus());
  for (const int64_t step : {20, 30}) {
    ref.set_step(step);
    EXPECT_TRUE(cluster_.state().FindCheckpoint(ref)->left());
  }
  EXPECT_EQ(cluster_.state().NewestGood(job_)->ref().step(), 10);
  EXPECT_EQ(LoadableCheckpoints(cluster_.state(), Job()).size(), 1u);
  // The new history passes the abandoned steps, and later attempts resume from it.
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_RUNNING, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  EXPECT_EQ(cluster_.state().NewestGood(job_)->ref().step(), 20);
  EXPECT_EQ(cluster_.state().NewestGood(job_)->ref().attempt(), 2);
}

TEST_F(AttemptTest, BackOffDoublesUpToItsBoundAndIsVisible) {
  v1::RestartPolicy policy;
  policy.set_initial_backoff_ms(100);
  policy.set_max_backoff_ms(350);
  EXPECT_EQ(BackoffMs(policy, 1), 100);
  EXPECT_EQ(BackoffMs(policy, 2), 200);
  EXPECT_EQ(BackoffMs(policy, 3), 350);
  EXPECT_EQ(BackoffMs(policy, 1'000'000), 350);
  FailOnce("w1");
  EXPECT_EQ(Job().backoff_ms(), 1000);
  EXPECT_EQ(Job().not_before_unix_ms(), cluster_.now_ms + 1000);
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  EXPECT_EQ(BackoffOf(Job()), 0);
}

TEST_F(AttemptTest, RecordsWithoutDurationsGetThemByThePolicyAndTheDefault) {
  v1::JobRecord old;
  old.mutable_restart_policy()->set_initial_backoff_ms(100);
  old.mutable_restart_policy()->set_max_backoff_ms(350);
  old.set_restarts_without_progress(2);
  EXPECT_EQ(BackoffOf(old), 0);
  old.set_not_before_unix_ms(1);  // in the past, by a clock that does not matter
  EXPECT_EQ(BackoffOf(old), 200);
  old.mutable_attempt()->set_stop_by_unix_ms(1);
  EXPECT_EQ(StopGraceOf(old.attempt()), 0);
  old.mutable_attempt()->set_stopping(true);
  EXPECT_EQ(StopGraceOf(old.attempt()), kDefaultGraceMs);
}

TEST_F(AttemptTest, AJournalThatStoredTimesYieldsTheDurationsThatTheyWereMadeOf) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Apply(cluster_.Facts([this](v1::Fact& fact) {
    v1::AttemptStopping& stopping = *fact.mutable_attempt_stopping();
    stopping.set_job(job_);
    stopping.set_attempt(1);
    stopping.set_stop_by_unix_ms(cluster_.now_ms + 3000);
    stopping.set_reason("drained");
  })),
            absl::OkStatus());
  EXPECT_EQ(Job().attempt().stop_grace_ms(), 3000);
  // Only a shorter grace period changes anything.
  for (const auto& [grace_ms, code] :
       {std::pair(3000, Code::kFailedPrecondition), std::pair(2000, Code::kOk),
        std::pair(0, Code::kInvalidArgument)}) {
    EXPECT_EQ(cluster_
                  .Apply(cluster_.Facts([&, grace_ms = grace_ms](v1::Fact& fact) {
                    v1::AttemptStopping& stopping = *fact.mutable_attempt_stopping();
                    stopping.set_job(job_);
                    stopping.set_attempt(1);
                    stopping.set_grace_ms(grace_ms);
                  }))
                  .code(),
              code)
        << grace_ms;
  }
}

TEST_F(AttemptTest, AWorkerThatEndsTwoAttemptsIsExcludedAndFlagged) {
  FailOnce("w1");
  EXPECT_FALSE(Job().blames(0).excluded());
  FailOnce("w1");
  EXPECT_TRUE(Job().blames(0).excluded());
  EXPECT_EQ(cluster_.state().FindWorker("w1")->flags_size(), 1);
  const absl::Status status =
      cluster_.Run(DecideLaunch(cluster_.state(), job_, {{"w1", {0, 1}}, {"w2", {0, 1}}},
                                std::nullopt, "", {"ann", cluster_.now_ms + kMaxBackoffMs}));
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "worker w1 is excluded")) << status;
  const std::string other = cluster_.Submit(2);
  EXPECT_EQ(cluster_.Launch(other), absl::OkStatus());
  EXPECT_EQ(cluster_.Job(other).attempt().placements(0).worker(), "w1");
}

TEST_F(AttemptTest, AWorkerThatTheJobCannotDoWithoutIsFlaggedAndTheJobGivenUpInTheEnd) {
  std::vector<std::string> others;
  for (const auto& [name, worker] : cluster_.state().tables().workers) {
    if (name != "w1") others.push_back(name);
  }
  for (const std::string& other : others) {
    v1::DrainWorkerRequest request;
    request.set_request_id(cluster_.Id());
    request.set_worker(other);
    request.set_cordon_only(true);
    ASSERT_TRUE(cluster_.Do<v1::DrainWorkerResponse>(request).ok());
  }
  job_ = cluster_.Submit(2);
  for (int i = 0; i < 4; ++i) FailOnce("w1");
  EXPECT_FALSE(Job().blames(0).excluded());
  EXPECT_EQ(cluster_.state().FindWorker("w1")->flags_size(), 1);
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
}

TEST_F(AttemptTest, FailuresThatANewCheckpointHasOvercomeDoNotExclude) {
  FailOnce("w1");
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 7), absl::OkStatus());
  EXPECT_EQ(Job().blames_size(), 0);
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 8), absl::OkStatus());
  EXPECT_FALSE(Job().blames(0).excluded());
}

TEST_F(AttemptTest, AnOperatorWhoClearsItsFlagsGivesTheWorkerBackToTheJob) {
  FailOnce("w1");
  FailOnce("w1");
  ASSERT_TRUE(Job().blames(0).excluded());
  v1::UncordonWorkerRequest request;
  request.set_request_id(cluster_.Id());
  request.set_worker("w1");
  // Without clearing its flags, it stays excluded.
  ASSERT_TRUE(cluster_.Do<v1::UncordonWorkerResponse>(request).ok());
  EXPECT_EQ(Job().blames_size(), 1);
  request.set_request_id(cluster_.Id());
  request.set_clear_flags(true);
  ASSERT_TRUE(cluster_.Do<v1::UncordonWorkerResponse>(request).ok());
  EXPECT_EQ(Job().blames_size(), 0);
  EXPECT_EQ(cluster_.state().FindWorker("w1")->flags_size(), 0);
  cluster_.now_ms += kMaxBackoffMs;
  EXPECT_EQ(cluster_.Launch(job_), absl::OkStatus());
  EXPECT_EQ(Job().attempt().placements(0).worker(), "w1");
}

TEST_F(AttemptTest, ALostWorkerEndsItsAttempts) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w2", 1, "no report for 10 s",
                                          cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job().recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_LOST);
  EXPECT_FALSE(cluster_.state().FindWorker("w2")->present());
}

TEST_F(AttemptTest, ANewIncarnationEndsWhatReliedOnTheOldOne) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Register("w1", 2, 2), absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  const absl::Status old = cluster_.Register("w1", 1, 2);
  EXPECT_EQ(old.code(), Code::kAborted);
  EXPECT_TRUE(absl::StrContains(old.message(), "1 of worker w1 is over; the current one is 2"));
}

TEST_F(AttemptTest, TheSameWorkerAgainChangesNothing) {
  const int64_t before = cluster_.state().sequence();
  ASSERT_EQ(cluster_.Register("w1", 1, 2), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), before);
}

TEST_F(AttemptTest, AReportThatIsNoNewsIsNotJournalled) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  const int64_t before = cluster_.state().sequence();
  for (int64_t step = 1; step < 100; ++step) {
    ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_RUNNING, step), absl::OkStatus());
  }
  EXPECT_EQ(cluster_.state().sequence(), before);
}

TEST_F(AttemptTest, ASlotIsNeverGivenTwice) {
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  const std::string other = cluster_.Submit(2);
  const absl::Status status = cluster_.Run(DecideLaunch(
      cluster_.state(), other, {{"w3", {0}}, {"w1", {1}}}, std::nullopt, "", cluster_.caller()));
  EXPECT_EQ(status, absl::FailedPreconditionError("placements: slot 1 of worker w1 is in use"));
}

TEST_F(AttemptTest, AGangIsNeverSplitOrOfAWorldThatIsNotAllowed) {
  const auto launch = [this](const std::vector<SlotChoice>& slots) {
    return cluster_
        .Run(DecideLaunch(cluster_.state(), job_, slots, std::nullopt, "", cluster_.caller()))
        .code();
  };
  EXPECT_EQ(launch({{"w1", {0, 1}}, {"w2", {0}}}), Code::kInvalidArgument);
  EXPECT_EQ(launch({{"w1", {0, 2}}, {"w2", {0, 1}}}), Code::kInvalidArgument);
  EXPECT_EQ(launch({{"w1", {0}}, {"w2", {0, 1}}, {"w1", {1}}}), Code::kInvalidArgument);
  EXPECT_EQ(launch({{"w9", {0, 1, 2, 3}}}), Code::kNotFound);
}

TEST_F(AttemptTest, TheWholeGangRestartsFromTheNewestCheckpointThatCanBeLoaded) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 20), absl::OkStatus());
  v1::VerifyCheckpointRequest verify;
  verify.set_request_id(cluster_.Id());
  verify.mutable_ref()->set_job(job_);
  verify.mutable_ref()->set_step(20);
  const auto task = cluster_.Do<v1::VerifyCheckpointResponse>(verify);
  ASSERT_EQ(task.status(), absl::OkStatus());
  v1::TaskReport report;
  *report.mutable_ref() = task->ref();
  report.set_task(task->task());
  report.set_state(v1::CHECKPOINT_TASK_STATE_DONE);
  report.set_damaged(true);
  report.set_detail("chunk 3 of blocks.0.mlp.up.weight");
  ASSERT_EQ(cluster_.Run(DecideTaskReport(cluster_.state(), "w1", report, cluster_.caller())),
            absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED), absl::OkStatus());
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  EXPECT_EQ(Job().attempt().resume().step(), 10);
}

TEST_F(AttemptTest, NoAttemptBeginsAtStepZeroWhereThereIsACheckpoint) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w1", 1, "silent", cluster_.caller())),
            absl::OkStatus());
  EXPECT_TRUE(LoadableCheckpoints(cluster_.state(), Job()).empty());
  cluster_.now_ms += kMaxBackoffMs;
  const absl::Status status = cluster_.Launch(job_);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "at step 10 (attempt 1)")) << status;
  ASSERT_EQ(cluster_.Register("w1", 2, 2), absl::OkStatus());
  EXPECT_EQ(cluster_.Launch(job_), absl::OkStatus());
}

TEST_F(AttemptTest, AWatchdogNamesTheOutcome) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(
      cluster_.Run(DecideAttemptFailed(cluster_.state(), job_, 1, v1::ATTEMPT_OUTCOME_HUNG, "w2",
                                       "rank 2 waits in all-reduce", cluster_.caller())),
      absl::OkStatus());
  EXPECT_EQ(Job().recent_attempts(0).outcome(), v1::ATTEMPT_OUTCOME_HUNG);
  EXPECT_EQ(Job().blames(0).worker(), "w2");
  EXPECT_EQ(cluster_
                .Run(DecideAttemptFailed(cluster_.state(), job_, 1, v1::ATTEMPT_OUTCOME_HUNG, "w2",
                                         "again", cluster_.caller()))
                .code(),
            Code::kAborted);
}

// The cause of a failure, and its consequences for the job and the worker.

class FailureCauseTest : public testing::Test {
 protected:
  FailureCauseTest() {
    cluster_.AddWorkers(3, 2);
    job_ = cluster_.Submit();
  }
  const v1::JobRecord& Job() const { return cluster_.Job(job_); }
  void Start() {
    cluster_.now_ms += kMaxBackoffMs;
    ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  }
  void Fail(const std::string& worker, v1::FailureCause cause, const std::string& detail) {
    ASSERT_EQ(cluster_.Report(job_, worker, v1::RANK_PHASE_FAILED, 5, 0, detail, cause),
              absl::OkStatus());
  }
  // This job has blamed or flagged no worker.
  void ExpectNobodyBlamed() const {
    EXPECT_EQ(Job().blames_size(), 0);
    for (const auto& [name, worker] : cluster_.state().tables().workers) {
      EXPECT_EQ(worker->flags_size(), 0) << name;
    }
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(FailureCauseTest, TheSpecsFaultEndsTheJobAtOnceWithItsWordsAndBlamesNobody) {
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  Fail("w1", v1::FAILURE_CAUSE_SPEC, "data.train: /x: no such file or directory");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job().state_reason(), "data.train: /x: no such file or directory (on worker w1)");
  EXPECT_EQ(Job().last_attempt(), 1);
  EXPECT_EQ(Job().recent_attempts(0).cause(), v1::FAILURE_CAUSE_SPEC);
  EXPECT_EQ(Job().restarts_without_progress(), 0);
  ExpectNobodyBlamed();
}

TEST_F(FailureCauseTest, TheSpecsFaultOfAJobThatIsBeingCancelledCancelsIt) {
  Start();
  v1::CancelJobRequest cancel;
  cancel.set_request_id(cluster_.Id());
  cancel.set_job(job_);
  ASSERT_TRUE(cluster_.Do<v1::CancelJobResponse>(cancel).ok());
  Fail("w1", v1::FAILURE_CAUSE_SPEC, "data.train: gone");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(FailureCauseTest, AFullDiskIsWaitedForHoweverLongWithABackOffThatGrows) {
  int64_t last = 0;
  for (int i = 0; i < 20; ++i) {
    Start();
    Fail("w1", v1::FAILURE_CAUSE_DISK, "No space left on device");
    ASSERT_EQ(Job().state(), v1::JOB_STATE_RECOVERING) << i;
    const int64_t backoff = Job().not_before_unix_ms() - cluster_.now_ms;
    EXPECT_GE(backoff, last);
    last = backoff;
  }
  EXPECT_GT(last, Job().restart_policy().initial_backoff_ms());
  EXPECT_EQ(Job().restarts_without_progress(), 0);
  ExpectNobodyBlamed();
}

TEST_F(FailureCauseTest, ACheckpointThatIsKnownToBeDamagedCostsNoRestart) {
  Start();
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  Fail("w1", v1::FAILURE_CAUSE_MACHINE, "killed");
  Start();
  ASSERT_EQ(Job().attempt().resume().step(), 10);
  v1::CheckpointRef ref = Job().attempt().resume();
  ASSERT_EQ(cluster_.Apply(cluster_.Facts([&](v1::Fact& fact) {
    *fact.mutable_checkpoint_damaged()->mutable_ref() = ref;
    fact.mutable_checkpoint_damaged()->set_detail("chunk 3");
  })),
            absl::OkStatus());
  const int32_t before = Job().restarts_without_progress();
  Fail("w2", v1::FAILURE_CAUSE_CHECKPOINT, "chunk 3 is damaged");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Job().restarts_without_progress(), before);
}

TEST_F(FailureCauseTest, ACheckpointThatIsStillTakenForGoodCountsSoThatTheJobEnds) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_NE(Job().state(), v1::JOB_STATE_FAILED) << i;
    Start();
    Fail("w1", v1::FAILURE_CAUSE_CHECKPOINT, "cannot be read");
  }
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
  ExpectNobodyBlamed();
}

TEST_F(FailureCauseTest, OfTwoWorkersTheOneWhoseRankEndedIsBlamedWhoeverReportsFirst) {
  Start();
  Fail("w2", v1::FAILURE_CAUSE_PEER, "lost rank 0");
  // The rank at fault has not reported yet.
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RUNNING);
  Fail("w1", v1::FAILURE_CAUSE_MACHINE, "rank 0 was killed by signal 9");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  ASSERT_EQ(Job().blames_size(), 1);
  EXPECT_EQ(Job().blames(0).worker(), "w1");
  EXPECT_EQ(Job().recent_attempts(0).cause(), v1::FAILURE_CAUSE_MACHINE);
}

TEST_F(FailureCauseTest, OfTwoWorkersThatLostEachOtherNeitherIsBlamed) {
  for (int i = 0; i < 3; ++i) {
    Start();
    Fail("w2", v1::FAILURE_CAUSE_PEER, "lost rank 0");
    Fail("w1", v1::FAILURE_CAUSE_PEER, "lost rank 2");
    EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  }
  EXPECT_EQ(Job().restarts_without_progress(), 3);
  ExpectNobodyBlamed();
}

TEST_F(FailureCauseTest, WhereTheOtherWorkerIsLostItsLeaseSaysWhoseFaultItWas) {
  Start();
  Fail("w2", v1::FAILURE_CAUSE_PEER, "lost rank 0");
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w1", 1, "silent", cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  ASSERT_EQ(Job().blames_size(), 1);
  EXPECT_EQ(Job().blames(0).worker(), "w1");
}

TEST_F(FailureCauseTest, RanksThatRunAgainBesideOnesThatLostAPeerMoveNothing) {
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  Fail("w2", v1::FAILURE_CAUSE_PEER, "lost rank 0");
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_RUNNING), absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_STARTING);
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_TRUE(absl::StrContains(Job().state_reason(), "ranks on w2 failed: lost rank 0"))
      << Job().state_reason();
  ExpectNobodyBlamed();
}

TEST_F(FailureCauseTest, AGuardThatWantsAPersonPausesTheJobInItsOwnName) {
  Start();
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  Fail("w1", v1::FAILURE_CAUSE_GUARD_PAUSE, "guards.non_finite: 8 updates in a row were skipped");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_PAUSED);
  EXPECT_FALSE(Job().has_attempt());
  EXPECT_EQ(Job().goal(), v1::JOB_GOAL_PAUSE);
  EXPECT_EQ(Job().goal_author(), "guard");
  EXPECT_TRUE(absl::StrContains(Job().state_reason(), "8 updates in a row were skipped"));
  ExpectNobodyBlamed();
  v1::ResumeJobRequest resume;
  resume.set_request_id(cluster_.Id());
  resume.set_job(job_);
  ASSERT_TRUE(cluster_.Do<v1::ResumeJobResponse>(resume).ok());
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  EXPECT_EQ(Job().attempt().resume().step(), 10);
}

TEST_F(FailureCauseTest, AGuardRollsBackToTheNewestCheckpointAndPausesWhereThatDoesNotHelp) {
  Start();
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  for (int i = 0; i < kMaxRollbacks; ++i) {
    Fail("w1", v1::FAILURE_CAUSE_GUARD_ROLLBACK, "guards.max_skips: 10 steps were skipped");
    ASSERT_EQ(Job().state(), v1::JOB_STATE_RECOVERING) << i;
    Start();
    EXPECT_EQ(Job().attempt().resume().step(), 10);
  }
  Fail("w1", v1::FAILURE_CAUSE_GUARD_ROLLBACK, "guards.max_skips: 10 steps were skipped");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job().goal_author(), "guard");
  EXPECT_TRUE(absl::StartsWith(Job().state_reason(), "rolled back 2 times, and again: "))
      << Job().state_reason();
  EXPECT_EQ(Job().restarts_without_progress(), 0);
  ExpectNobodyBlamed();
}

TEST_F(FailureCauseTest, AGuardThatEndsTheRunEndsTheJob) {
  Start();
  Fail("w1", v1::FAILURE_CAUSE_GUARD_FAIL, "step 7: not finite: loss nan");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job().state_author(), "guard");
  ExpectNobodyBlamed();
}

TEST_F(FailureCauseTest, WhatRanksWaitForIsSaidOnceAndOnceMoreWhenItIsOver) {
  Start();
  const auto report = [this](const std::string& trouble) {
    v1::GangReport gang;
    gang.set_job(job_);
    gang.set_attempt(Job().last_attempt());
    gang.set_phase(v1::RANK_PHASE_RUNNING);
    gang.set_next_step(1000);
    gang.set_trouble(trouble);
    ASSERT_EQ(cluster_.Run(DecideGangReport(cluster_.state(), "w1", 1, gang, cluster_.caller())),
              absl::OkStatus());
  };
  const auto trouble = [this] {
    return ViewJob(cluster_.state(), Job(), cluster_.live, "").trouble();
  };
  report("the disk is full");
  EXPECT_EQ(trouble(), "w1: the disk is full");
  const int64_t said = cluster_.state().sequence();
  report("the disk is full");
  EXPECT_EQ(cluster_.state().sequence(), said);
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RUNNING);
  report("");
  EXPECT_EQ(trouble(), "");
  int events = 0;
  for (int64_t number = Job().first_event(); number < Job().next_event(); ++number) {
    const v1::JobEvent& event = *FindIn(cluster_.state().tables().events, EventKey(job_, number));
    events += event.kind() == v1::JOB_EVENT_KIND_TROUBLE;
  }
  EXPECT_EQ(events, 2);
  report("the disk is full");
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(trouble(), "");
}

TEST_F(FailureCauseTest, ACauseThatIsNotKnownYetIsTheMachines) {
  for (int i = 0; i < 2; ++i) {
    Start();
    Fail("w1", static_cast<v1::FailureCause>(99), "of a newer worker");
  }
  EXPECT_EQ(Job().blames(0).worker(), "w1");
  EXPECT_EQ(Job().blames(0).failures(), 2);
}

}  // namespace
}  // namespace nibble
