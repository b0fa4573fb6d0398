// The cause of a failure, and its consequences for the job and the worker.
#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "job/job_spec.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/testing.h"
#include "server/state/views.h"

namespace nibble {
namespace {

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
  void ExpectNoBlame() const {
    EXPECT_EQ(Job().blames_size(), 0);
    for (const auto& [name, worker] : cluster_.state().tables().workers) {
      EXPECT_EQ(worker->flags_size(), 0) << name;
    }
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(FailureCauseTest, ASpecErrorFailsTheJobAtOnceAndBlamesNoWorker) {
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  Fail("w1", v1::FAILURE_CAUSE_SPEC, "data.train: /x: no such file or directory");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job().state_reason(), "data.train: /x: no such file or directory (on worker w1)");
  EXPECT_EQ(Job().last_attempt(), 1);
  EXPECT_EQ(Job().recent_attempts(0).cause(), v1::FAILURE_CAUSE_SPEC);
  EXPECT_EQ(Job().restarts_without_progress(), 0);
  ExpectNoBlame();
}

TEST_F(FailureCauseTest, ASpecErrorOfAJobThatIsBeingCancelledCancelsIt) {
  Start();
  v1::CancelJobRequest cancel;
  cancel.set_request_id(cluster_.Id());
  cancel.set_job(job_);
  ASSERT_TRUE(cluster_.Do<v1::CancelJobResponse>(cancel).ok());
  Fail("w1", v1::FAILURE_CAUSE_SPEC, "data.train: gone");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_CANCELLED);
}

TEST_F(FailureCauseTest, AFullDiskIsRetriedWithoutLimitAndWithGrowingBackoff) {
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
  ExpectNoBlame();
}

TEST_F(FailureCauseTest, TheNewestAttemptsAreRemembered) {
  for (int64_t number = 1; number <= kMaxRecentAttempts + 1; ++number) {
    Start();
    Fail("w1", v1::FAILURE_CAUSE_DISK, "No space left on device");
    ASSERT_EQ(Job().recent_attempts_size(), std::min(number, kMaxRecentAttempts));
  }
  EXPECT_EQ(Job().recent_attempts(0).number(), 2);
  EXPECT_EQ(Job().recent_attempts().rbegin()->number(), kMaxRecentAttempts + 1);
}

TEST_F(FailureCauseTest, AFailureOnACheckpointKnownToBeDamagedDoesNotCount) {
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

TEST_F(FailureCauseTest, AFailureOnACheckpointNotKnownToBeDamagedCounts) {
  for (int i = 0; i < 4; ++i) {
    ASSERT_NE(Job().state(), v1::JOB_STATE_FAILED) << i;
    Start();
    Fail("w1", v1::FAILURE_CAUSE_CHECKPOINT, "cannot be read");
  }
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
  ExpectNoBlame();
}

TEST_F(FailureCauseTest, TheWorkerWhoseRankEndedIsBlamedInEitherOrderOfReports) {
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

TEST_F(FailureCauseTest, TwoWorkersThatLostEachOtherAreNotBlamed) {
  for (int i = 0; i < 3; ++i) {
    Start();
    Fail("w2", v1::FAILURE_CAUSE_PEER, "lost rank 0");
    Fail("w1", v1::FAILURE_CAUSE_PEER, "lost rank 2");
    EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  }
  EXPECT_EQ(Job().restarts_without_progress(), 3);
  ExpectNoBlame();
}

TEST_F(FailureCauseTest, AfterALostPeerTheExpiredLeaseDecidesWhomToBlame) {
  Start();
  Fail("w2", v1::FAILURE_CAUSE_PEER, "lost rank 0");
  ASSERT_EQ(cluster_.Run(DecideWorkerLost(cluster_.state(), "w1", 1, "silent", cluster_.caller())),
            absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  ASSERT_EQ(Job().blames_size(), 1);
  EXPECT_EQ(Job().blames(0).worker(), "w1");
}

TEST_F(FailureCauseTest, RunningRanksBesideRanksThatLostAPeerDoNotMoveTheJob) {
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  Fail("w2", v1::FAILURE_CAUSE_PEER, "lost rank 0");
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_RUNNING), absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_STARTING);
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_TRUE(absl::StrContains(Job().state_reason(), "ranks on w2 failed: lost rank 0"))
      << Job().state_reason();
  ExpectNoBlame();
}

TEST_F(FailureCauseTest, AGuardThatPausesTheJobIsTheAuthorOfThePause) {
  Start();
  ASSERT_EQ(cluster_.Checkpoint(job_, 10), absl::OkStatus());
  Fail("w1", v1::FAILURE_CAUSE_GUARD_PAUSE, "guards.non_finite: 8 updates in a row were skipped");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_PAUSED);
  EXPECT_FALSE(Job().has_attempt());
  EXPECT_EQ(Job().goal(), v1::JOB_GOAL_PAUSE);
  EXPECT_EQ(Job().goal_author(), "guard");
  EXPECT_TRUE(absl::StrContains(Job().state_reason(), "8 updates in a row were skipped"));
  ExpectNoBlame();
  v1::ResumeJobRequest resume;
  resume.set_request_id(cluster_.Id());
  resume.set_job(job_);
  ASSERT_TRUE(cluster_.Do<v1::ResumeJobResponse>(resume).ok());
  ASSERT_EQ(cluster_.Launch(job_), absl::OkStatus());
  EXPECT_EQ(Job().attempt().resume().step(), 10);
}

TEST_F(FailureCauseTest, DecisionsOfGuardsAreEventsOnceInEachAttempt) {
  Start();
  const auto report = [this](std::vector<std::pair<int64_t, std::string>> decided) {
    v1::GangReport gang;
    gang.set_job(job_);
    gang.set_attempt(Job().last_attempt());
    gang.set_phase(v1::RANK_PHASE_RUNNING);
    gang.set_next_step(1000);
    for (const auto& [step, guard] : decided) {
      v1::GuardDecision& decision = *gang.add_decided();
      decision.set_step(step);
      decision.set_guard(guard);
      decision.set_action("promoted");
      decision.set_detail("too much");
    }
    ASSERT_EQ(cluster_.Run(DecideGangReport(cluster_.state(), "w1", 1, gang, cluster_.caller())),
              absl::OkStatus());
  };
  const auto events = [this] {
    std::vector<std::string> texts;
    for (int64_t number = Job().first_event(); number < Job().next_event(); ++number) {
      const v1::JobEvent& event = *FindIn(cluster_.state().tables().events, EventKey(job_, number));
      const bool spike = event.kind() == v1::JOB_EVENT_KIND_SPIKE;
      if (!spike && event.kind() != v1::JOB_EVENT_KIND_GUARD) continue;
      EXPECT_EQ(PostedAs(event), spike ? NotifyEvent::kSpike : NotifyEvent::kGuard);
      texts.push_back(event.text());
    }
    return texts;
  };
  report({{7, "spike"}, {7, "clipped"}});
  report({{7, "spike"}, {7, "clipped"}});
  EXPECT_EQ(events(), (std::vector<std::string>{"guard spike at step 7: promoted: too much",
                                                "guard clipped at step 7: promoted: too much"}));
  report({{7, "spike"}, {7, "clipped"}, {9, "spike"}});
  EXPECT_EQ(events().size(), 3u);
  Fail("w1", v1::FAILURE_CAUSE_MACHINE, "killed");
  Start();
  report({{7, "spike"}});
  EXPECT_EQ(events().size(), 4u);
}

TEST_F(FailureCauseTest, AGuardThatFailsTheRunFailsTheJob) {
  Start();
  Fail("w1", v1::FAILURE_CAUSE_GUARD_FAIL, "step 7: not finite: loss nan");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(Job().state_author(), "guard");
  ExpectNoBlame();
}

TEST_F(FailureCauseTest, WhatRanksWaitForIsAnEventWhenItStartsAndWhenItEnds) {
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
  const int64_t before = cluster_.state().sequence();
  report("the disk is full");
  EXPECT_EQ(cluster_.state().sequence(), before);
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

TEST_F(FailureCauseTest, AnUnknownCauseCountsAsTheMachines) {
  for (int i = 0; i < 2; ++i) {
    Start();
    Fail("w1", static_cast<v1::FailureCause>(99), "of a newer worker");
  }
  EXPECT_EQ(Job().blames(0).worker(), "w1");
  EXPECT_EQ(Job().blames(0).failures(), 2);
}

}  // namespace
}  // namespace nibble
