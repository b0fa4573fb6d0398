// Attempts: fencing, restarts, backoff and exclusion.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
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

TEST_F(AttemptTest, AJobThatStoppedEarlyHasSucceededAndItsReasonNamesTheStep) {
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

TEST_F(AttemptTest, AReportFromAnAttemptThatWasNeverLaunchedIsRefused) {
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

TEST_F(AttemptTest, AShardIsFirstReportedByTheWorkerThatRunsItsRank) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  const std::string owner = Job().attempt().placements(0).worker();
  v1::ShardReport claimed;
  claimed.mutable_ref()->set_job(job_);
  claimed.mutable_ref()->set_step(10);
  claimed.mutable_ref()->set_attempt(1);
  claimed.set_rank(0);
  claimed.set_world(Job().attempt().world());
  claimed.set_bytes(1000);
  claimed.set_manifest_crc32c(77);
  for (const v1::Placement& placement : Job().attempt().placements()) {
    if (placement.worker() == owner) continue;
    const absl::Status refused = cluster_.Run(
        DecideShardReport(cluster_.state(), placement.worker(), claimed, cluster_.caller()));
    EXPECT_EQ(refused.code(), Code::kPermissionDenied) << refused;
  }
  ASSERT_GT(Job().attempt().placements_size(), 1);
  EXPECT_TRUE(cluster_.state().CheckpointsOf(job_).empty());
  // The true one is not in its way, and others may hold copies of it from then on.
  EXPECT_EQ(cluster_.Shard(job_, 10, 0), absl::OkStatus());
  claimed.set_manifest_crc32c(1);
  EXPECT_EQ(cluster_.Run(DecideShardReport(cluster_.state(), Job().attempt().placements(1).worker(),
                                           claimed, cluster_.caller())),
            absl::OkStatus());
}

TEST_F(AttemptTest, NumbersGrowAndAreNeverReused) {
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

TEST_F(AttemptTest, AJobFailsAfterTooManyFailuresWithoutACheckpoint) {
  for (const char* worker : {"w1", "w2", "w1"}) {
    FailOnce(worker);
    EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  }
  FailOnce("w2");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job().state_reason(),
            "failed after 4 failures in a row without a new checkpoint; the last: ranks on w2 "
            "failed: rank 1: NaN");
}

TEST_F(AttemptTest, ANewCheckpointResetsTheFailureCount) {
  FailOnce("w1");
  FailOnce("w2");
  EXPECT_EQ(Job().restarts_without_progress(), 2);
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 7), absl::OkStatus());
  EXPECT_EQ(Job().restarts_without_progress(), 0);
}

TEST_F(AttemptTest, CheckpointsAfterTheFirstStepOfAnAttemptAreAbandoned) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  for (const int64_t step : {10, 20, 30}) {
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 35), absl::OkStatus());
  v1::CheckpointRef ref;
  ref.set_job(job_);
  ref.set_step(10);
  ref.set_attempt(1);
  // Simulates that the later checkpoints are on an absent worker.
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

TEST_F(AttemptTest, BackoffDoublesUpToItsMaximumAndIsVisible) {
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

TEST_F(AttemptTest, RecordsWithoutDurationsUseThePolicyAndTheDefault) {
  v1::JobRecord old;
  old.mutable_restart_policy()->set_initial_backoff_ms(100);
  old.mutable_restart_policy()->set_max_backoff_ms(350);
  old.set_restarts_without_progress(2);
  EXPECT_EQ(BackoffOf(old), 0);
  old.set_not_before_unix_ms(1);  // in the past; the wall clock does not matter
  EXPECT_EQ(BackoffOf(old), 200);
  old.mutable_attempt()->set_stop_by_unix_ms(1);
  EXPECT_EQ(StopGraceOf(old.attempt()), 0);
  old.mutable_attempt()->set_stopping(true);
  EXPECT_EQ(StopGraceOf(old.attempt()), kDefaultGraceMs);
}

TEST_F(AttemptTest, AJournalOfEndTimesYieldsTheDurations) {
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
  // Only a shorter grace period has an effect.
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

TEST_F(AttemptTest, AWorkerThatTheJobNeedsIsFlaggedButNotExcludedAndTheJobFails) {
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

TEST_F(AttemptTest, FailuresBeforeANewCheckpointDoNotExclude) {
  FailOnce("w1");
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 7), absl::OkStatus());
  EXPECT_EQ(Job().blames_size(), 0);
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 8), absl::OkStatus());
  EXPECT_FALSE(Job().blames(0).excluded());
}

TEST_F(AttemptTest, ClearingTheFlagsOfAWorkerEndsItsExclusion) {
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

TEST_F(AttemptTest, ANewIncarnationEndsAttemptsOfTheOldOne) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Register("w1", 2, 2), absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  const absl::Status old = cluster_.Register("w1", 1, 2);
  EXPECT_EQ(old.code(), Code::kAborted);
  EXPECT_TRUE(absl::StrContains(old.message(), "1 of worker w1 is over; the current one is 2"));
}

TEST_F(AttemptTest, ReconnectingWithTheSameIncarnationChangesNothing) {
  const int64_t before = cluster_.state().sequence();
  ASSERT_EQ(cluster_.Register("w1", 1, 2), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), before);
}

TEST_F(AttemptTest, AReportWithoutChangesIsNotJournalled) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  const int64_t before = cluster_.state().sequence();
  for (int64_t step = 1; step < 100; ++step) {
    ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_RUNNING, step), absl::OkStatus());
  }
  EXPECT_EQ(cluster_.state().sequence(), before);
}

TEST_F(AttemptTest, ASlotIsNeverAssignedTwice) {
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  const std::string other = cluster_.Submit(2);
  const absl::Status status = cluster_.Run(DecideLaunch(
      cluster_.state(), other, {{"w3", {0}}, {"w1", {1}}}, std::nullopt, "", cluster_.caller()));
  EXPECT_EQ(status, absl::FailedPreconditionError("placements: slot 1 of worker w1 is in use"));
}

TEST_F(AttemptTest, AGangIsNeverSplitAndItsWorldSizeIsAllowed) {
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

TEST_F(AttemptTest, TheWholeGangRestartsFromTheNewestLoadableCheckpoint) {
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

TEST_F(AttemptTest, NoAttemptBeginsAtStepZeroIfThereIsACheckpoint) {
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

TEST_F(AttemptTest, TheWatchdogSetsTheOutcome) {
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

}  // namespace
}  // namespace nibble
