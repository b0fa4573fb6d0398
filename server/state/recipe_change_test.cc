// Changes of a job's recipe: revisions, the step they take effect, confirmations.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/state/limits.h"
#include "server/state/testing.h"

namespace nibble {
namespace {

using Code = absl::StatusCode;

class RecipeChangeTest : public testing::Test {
 protected:
  RecipeChangeTest() {
    cluster_.AddWorkers(2, 2);
    job_ = cluster_.Submit();
  }

  v1::SetRecipeRequest Request(const std::string& at, int64_t expected) {
    v1::SetRecipeRequest request;
    request.set_request_id(cluster_.Id());
    request.set_job(job_);
    request.set_expected_revision(expected);
    request.set_at(at);
    v1::FieldSetting& setting = *request.mutable_change()->add_set();
    setting.set_field("fprop");
    setting.set_value("bf16");
    return request;
  }
  absl::StatusOr<v1::SetRecipeResponse> Set(const std::string& at, int64_t expected = -1) {
    return cluster_.Do<v1::SetRecipeResponse>(Request(at, expected));
  }
  absl::Status Say(const std::vector<std::pair<int64_t, int64_t>>& revisions) {
    v1::GangReport report;
    report.set_job(job_);
    report.set_attempt(cluster_.Job(job_).last_attempt());
    report.set_phase(v1::RANK_PHASE_RUNNING);
    for (const auto& [revision, first_step] : revisions) {
      report.add_revisions()->set_revision(revision);
      report.mutable_revisions()->rbegin()->set_first_step(first_step);
    }
    return cluster_.Run(DecideGangReport(cluster_.state(), "w1", 1, report, cluster_.caller()));
  }
  absl::Status SayRefused(int64_t revision, const std::string& reason) {
    v1::GangReport report;
    report.set_job(job_);
    report.set_attempt(cluster_.Job(job_).last_attempt());
    report.set_phase(v1::RANK_PHASE_RUNNING);
    report.add_revisions()->set_revision(1);
    v1::RefusedRevision& refused = *report.add_refused();
    refused.set_revision(revision);
    refused.set_reason(reason);
    return cluster_.Run(DecideGangReport(cluster_.state(), "w1", 1, report, cluster_.caller()));
  }
  const v1::TimelineRecord& Timeline() const { return *cluster_.state().FindTimeline(job_); }
  // "1@0 2@100": numbers and first steps.
  std::string Steps(const std::string& job) const {
    std::string text;
    for (const v1::RecipeRevision& r : cluster_.state().FindTimeline(job)->revisions()) {
      absl::StrAppend(&text, text.empty() ? "" : " ", r.number(), "@", r.first_step());
    }
    return text;
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(RecipeChangeTest, StaleExpectedRevisionIsRefused) {
  ASSERT_EQ(Set("step:100", 1).status(), absl::OkStatus());
  const absl::Status stale = Set("step:200", 1).status();
  EXPECT_EQ(stale, absl::FailedPreconditionError("expected_revision: 1 is not the latest, 2"));
  EXPECT_EQ(Steps(job_), "1@0 2@100");
  EXPECT_EQ(Set("step:200", 2).status(), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@100 3@200");
}

TEST_F(RecipeChangeTest, AChangeWithoutSettingsMakesNoRevision) {
  v1::SetRecipeRequest request = Request("now", -1);
  request.clear_change();
  EXPECT_EQ(cluster_.Do<v1::SetRecipeResponse>(request).status(),
            absl::InvalidArgumentError("change: sets no field"));
  request.mutable_change()->add_layers()->set_match("*");
  EXPECT_EQ(cluster_.Do<v1::SetRecipeResponse>(request).status(),
            absl::InvalidArgumentError("change: the rule for layers '*' sets no field"));
  EXPECT_EQ(Steps(job_), "1@0");
}

TEST_F(RecipeChangeTest, AChangeOfAQueuedJobTakesEffectAtItsFirstStep) {
  const auto response = Set("now");
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(response->revision(), 2);
  EXPECT_EQ(response->first_step(), 0);
  EXPECT_EQ(Steps(job_), "1@0 2@0");
}

TEST_F(RecipeChangeTest, TimesAreConvertedToSteps) {
  EXPECT_EQ(Set("lr-decay")->first_step(), 800);
  EXPECT_EQ(Set("fraction:0.9")->first_step(), 900);
  EXPECT_EQ(Set("tokens:204800")->first_step(), 100);
  EXPECT_EQ(Set("step:1001").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Set("later").status().code(), Code::kInvalidArgument);
}

TEST_F(RecipeChangeTest, AChangeOfARunningJobTakesEffectAtTheNextStepOfItsRanks) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 120};
  EXPECT_EQ(Set("now")->first_step(), 120);
  EXPECT_EQ(Set("step:119").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Steps(job_), "1@0 2@120");
}

TEST_F(RecipeChangeTest, ProgressOfAnOldAttemptIsIgnored) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  cluster_.live = {.attempt = 0, .next_step = 120};
  EXPECT_EQ(Set("now")->first_step(), 0);
}

TEST_F(RecipeChangeTest, AChangeOfARecoveringJobTakesEffectWhereItWillResume) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 50), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 80};
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 80), absl::OkStatus());
  EXPECT_EQ(cluster_.StateOf(job_), v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(Set("now")->first_step(), 50);
  EXPECT_EQ(Set("step:49").status().code(), Code::kInvalidArgument);
}

TEST_F(RecipeChangeTest, AChangeOfAPausedJobTakesEffectAtItsNextStep) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  v1::PauseJobRequest pause;
  pause.set_request_id(cluster_.Id());
  pause.set_job(job_);
  ASSERT_EQ(cluster_.Do<v1::PauseJobResponse>(pause).status(), absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_PAUSED, 77), absl::OkStatus());
  ASSERT_EQ(cluster_.StateOf(job_), v1::JOB_STATE_PAUSED);
  cluster_.live = {.attempt = 1, .next_step = 77};
  EXPECT_EQ(Set("now")->first_step(), 77);
}

TEST_F(RecipeChangeTest, AFinishedJobAcceptsNoChange) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(Set("now").status().code(), Code::kFailedPrecondition);
}

TEST_F(RecipeChangeTest, AChangeAfterTheLastStepIsRefusedBecauseItWouldNeverRun) {
  EXPECT_EQ(Set("step:999")->first_step(), 999);
  for (const char* const at : {"step:1000", "100%"}) {
    const absl::Status status = Set(at).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << at;
    EXPECT_TRUE(absl::StrContains(status.message(), "at: step 1000 is after the last of " + job_))
        << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "allowed: steps up to 999")) << status;
  }
  // Its ranks have run every step and have not ended yet.
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 1000};
  EXPECT_EQ(Set("now").status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Steps(job_), "1@0 2@999");
}

TEST_F(RecipeChangeTest, AChangeThatDoesNotFitTheModelHasNoEffect) {
  v1::SetRecipeRequest request = Request("now", -1);
  request.mutable_change()->mutable_set(0)->set_value("fp3");
  const absl::Status status = cluster_.Do<v1::SetRecipeResponse>(request).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "fp3")) << status;
  request = Request("now", -1);
  request.mutable_change()->clear_set();
  EXPECT_EQ(cluster_.Do<v1::SetRecipeResponse>(request).status().code(), Code::kInvalidArgument);
  request = Request("now", -1);
  v1::LayerRule& rule = *request.mutable_change()->add_layers();
  rule.set_match("blocks.99.mlp.up");
  *rule.add_set() = request.change().set(0);
  EXPECT_EQ(cluster_.Do<v1::SetRecipeResponse>(request).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(Steps(job_), "1@0");
}

TEST_F(RecipeChangeTest, ADryRunReturnsTheResultAndChangesNothing) {
  v1::SetRecipeRequest request = Request("step:100", 1);
  request.set_dry_run(true);
  request.clear_request_id();
  const int64_t before = cluster_.state().sequence();
  const auto response = cluster_.Do<v1::SetRecipeResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(response->revision(), 2);
  EXPECT_EQ(response->differences(0).field(), "fprop");
  EXPECT_EQ(response->differences(0).from(), "nvfp4");
  EXPECT_EQ(response->differences(0).to(), "bf16");
  EXPECT_EQ(cluster_.state().sequence(), before);
}

TEST_F(RecipeChangeTest, PendingRevisionsAreRebuiltOnTopOfAnEarlierChange) {
  ASSERT_EQ(Set("step:500").status(), absl::OkStatus());
  const auto response = Set("step:100");
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(response->revision(), 3);
  EXPECT_EQ(response->latest_revision(), 4);
  EXPECT_EQ(Steps(job_), "1@0 3@100 4@500");
}

TEST_F(RecipeChangeTest, ARollbackBringsTheEarlierRecipeBackIntoEffect) {
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  v1::RollbackRecipeRequest request;
  request.set_request_id(cluster_.Id());
  request.set_job(job_);
  request.set_expected_revision(2);
  request.set_revision(1);
  request.set_at("step:300");
  const auto response = cluster_.Do<v1::RollbackRecipeResponse>(request);
  ASSERT_EQ(response.status(), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@100 3@300");
  EXPECT_EQ(Timeline().revisions(2).recipe().SerializeAsString(),
            Timeline().revisions(0).recipe().SerializeAsString());
  request.set_request_id(cluster_.Id());
  request.set_expected_revision(-1);
  request.set_revision(17);
  EXPECT_EQ(cluster_.Do<v1::RollbackRecipeResponse>(request).status().code(), Code::kNotFound);
}

TEST_F(RecipeChangeTest, RanksReportTheExactStepOfASwitch) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}}), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 120};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}, {2, 122}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@122");
  EXPECT_EQ(Timeline().in_force(), 2);
  EXPECT_TRUE(Timeline().revisions(1).confirmed());
  const v1::JobEvent& event = *cluster_.state().EventsOf(job_).back();
  EXPECT_EQ(event.text(), "revision 2 in effect from step 122, requested for step 120");
  const int64_t before = cluster_.state().sequence();
  ASSERT_EQ(Say({{1, 0}, {2, 122}}), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), before);
}

TEST_F(RecipeChangeTest, ARevisionThatNoRankRanWasNeverInEffect) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}}), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  ASSERT_EQ(Set("step:101").status(), absl::OkStatus());
  ASSERT_EQ(Set("step:102").status(), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}, {3, 105}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@105 3@105 4@105");
}

TEST_F(RecipeChangeTest, ARevisionSupersededWhileRanksSwitchedToItWasInEffect) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}}), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 95};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 3@95 4@100");
  // The ranks were at step 102 when they received it.
  ASSERT_EQ(Say({{1, 0}, {2, 100}, {4, 102}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@100 3@102 4@102");
  EXPECT_TRUE(Timeline().revisions(1).confirmed());
  EXPECT_EQ(Timeline().in_force(), 4);
  EXPECT_TRUE(Timeline().retired().empty());
  const int64_t before = cluster_.state().sequence();
  ASSERT_EQ(Say({{1, 0}, {2, 100}, {4, 102}}), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), before);
}

TEST_F(RecipeChangeTest, ARevisionRolledBackWhileRanksSwitchedToItWasInEffect) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 95};
  v1::RollbackRecipeRequest request;
  request.set_request_id(cluster_.Id());
  request.set_job(job_);
  request.set_expected_revision(-1);
  request.set_revision(1);
  ASSERT_EQ(cluster_.Do<v1::RollbackRecipeResponse>(request).status(), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 3@95");
  ASSERT_EQ(Say({{1, 0}, {2, 100}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@100 3@100");
  ASSERT_EQ(Say({{1, 0}, {2, 100}, {3, 103}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@100 3@103");
}

TEST_F(RecipeChangeTest, ASupersededRevisionThatWasNotRunIsDropped) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 95};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(Timeline().retired_size(), 1);
  // The ranks received it in time.
  ASSERT_EQ(Say({{1, 0}, {3, 96}}), absl::OkStatus());
  EXPECT_TRUE(Timeline().retired().empty());
  EXPECT_EQ(Steps(job_), "1@0 3@96 4@100");
  ASSERT_EQ(Set("step:97").status(), absl::OkStatus());
  ASSERT_EQ(Timeline().retired_size(), 1);
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 98), absl::OkStatus());
  EXPECT_TRUE(Timeline().retired().empty());
  // No live rank could have switched.
  ASSERT_EQ(Set("step:90").status(), absl::OkStatus());
  EXPECT_TRUE(Timeline().retired().empty());
}

TEST_F(RecipeChangeTest, ARevisionThatRanksReceivedAfterTheLastStepWasNeverInEffect) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}}), absl::OkStatus());
  ASSERT_EQ(Set("step:980").status(), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 970};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}, {2, 980}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@980 3@980 4@980");
  ASSERT_EQ(cluster_.ReportAll(job_, v1::RANK_PHASE_SUCCEEDED, 1000), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@980 3@1000 4@1000");
}

TEST_F(RecipeChangeTest, SupersededRevisionsCountTowardsTheLimitOfATimeline) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Set("step:999").status(), absl::OkStatus());
  absl::Status status;
  for (int i = 0; i < 2 * kMaxRevisions && status.ok(); ++i) status = Set("now").status();
  EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
  EXPECT_LE(Timeline().revisions_size() + Timeline().retired_size(), kMaxRevisions);
}

TEST_F(RecipeChangeTest, AnAttemptThatStartsAfterASwitchDoesNotMoveIt) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 150), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 160), absl::OkStatus());
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{2, 100}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@100");
}

TEST_F(RecipeChangeTest, ASwitchAtTheFirstStepOfAnAttemptIsRecordedAtThatStep) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Set("step:149").status(), absl::OkStatus());
  // Written before the ranks received the change.
  ASSERT_EQ(cluster_.Checkpoint(job_, 150), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 150), absl::OkStatus());
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{2, 150}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@150");
}

TEST_F(RecipeChangeTest, AConfirmationBeforeTheRequestedStepIsRefused) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  EXPECT_EQ(Say({{2, 99}}).code(), Code::kInvalidArgument);
}

TEST_F(RecipeChangeTest, WhileTheProgressOfRanksIsUnknownTheirRecipeIsNotChanged) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  cluster_.live = {.attempt = 1, .unheard = true};
  EXPECT_EQ(Set("now").status().code(), Code::kUnavailable);
  EXPECT_EQ(Set("step:500").status().code(), Code::kUnavailable);
  EXPECT_EQ(Timeline().revisions_size(), 1);
  // Progress of an attempt that is over is ignored.
  cluster_.live = {.attempt = 0, .unheard = true};
  EXPECT_EQ(Set("step:500").status().code(), Code::kOk);
  cluster_.live = {.attempt = 1, .next_step = 40};
  EXPECT_EQ(Set("now")->first_step(), 40);
}

TEST_F(RecipeChangeTest, ALateChangeDoesNotMoveRevisionsThatRanksHaveRun) {
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{2, 0}}), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 243};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(Say({{2, 0}, {3, 247}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@0 3@247");
}

TEST_F(RecipeChangeTest, ARevisionSupersededBeforeRanksReceivedItWasNeverInEffect) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}}), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 40};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  // The ranks run past the step before they receive the change, and end before they can confirm it.
  ASSERT_EQ(cluster_.Checkpoint(job_, 50), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 52), absl::OkStatus());
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@40 3@50");
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{3, 50}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@50 3@50");
}

TEST_F(RecipeChangeTest, ARefusedRevisionNeverTakesEffectAndTheHistoryKeepsTheReason) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}}), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 40};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(SayRefused(2, "rank 3: no memory"), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@40");
  EXPECT_EQ(Timeline().revisions(1).refused(), "rank 3: no memory");
  EXPECT_FALSE(Timeline().revisions(1).confirmed());
  EXPECT_EQ(Timeline().in_force(), 1);
  EXPECT_EQ(cluster_.state().EventsOf(job_).back()->text(),
            "revision 2 refused, revision 1 stays in effect: rank 3: no memory");
  // Ranks repeat the report.
  const int64_t before = cluster_.state().sequence();
  ASSERT_EQ(SayRefused(2, "rank 3: no memory"), absl::OkStatus());
  EXPECT_EQ(cluster_.state().sequence(), before);
  // The next change builds on the revision in effect, and the refused number is not used again.
  cluster_.live.next_step = 45;
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}, {3, 46}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 2@40 3@46");
  EXPECT_EQ(Timeline().revisions(2).recipe().set_size(),
            Timeline().revisions(0).recipe().set_size() + 1);
  const auto again = Replay(cluster_.journal(), cluster_.journal().size());
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(again->FindTimeline(job_)->SerializeAsString(), Timeline().SerializeAsString());
}

TEST_F(RecipeChangeTest, ARefusedRevisionStaysWhenAnEarlierStepIsChanged) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}}), absl::OkStatus());
  ASSERT_EQ(Set("step:500").status(), absl::OkStatus());
  ASSERT_EQ(Set("step:600").status(), absl::OkStatus());
  ASSERT_EQ(SayRefused(3, "rank 0: no memory"), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 3@600 4@100 5@500");
  ASSERT_EQ(Say({{1, 0}, {4, 101}}), absl::OkStatus());
  EXPECT_EQ(Steps(job_), "1@0 3@600 4@101 5@500");
}

TEST_F(RecipeChangeTest, ARevisionThatAnEarlierAttemptRanCanBeRefusedWhenItsStepsAreRerun) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(cluster_.Checkpoint(job_, 30), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 40};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}, {2, 41}}), absl::OkStatus());
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 52), absl::OkStatus());
  cluster_.now_ms += kMaxBackoffMs;
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(SayRefused(2, "rank 1: no memory"), absl::OkStatus());
  EXPECT_FALSE(Timeline().revisions(1).confirmed());
  EXPECT_EQ(Timeline().in_force(), 1);
}

TEST_F(RecipeChangeTest, ARefusalOfASupersededRevisionIsOnlyArchived) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Say({{1, 0}}), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  cluster_.live = {.attempt = 1, .next_step = 95};
  ASSERT_EQ(Set("now").status(), absl::OkStatus());
  ASSERT_EQ(SayRefused(2, "rank 0: no memory"), absl::OkStatus());
  EXPECT_TRUE(Timeline().retired().empty());
  EXPECT_EQ(Steps(job_), "1@0 3@95 4@100");
}

TEST_F(RecipeChangeTest, ARollbackToARefusedRevisionIsRefused) {
  ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
  ASSERT_EQ(Set("step:100").status(), absl::OkStatus());
  ASSERT_EQ(SayRefused(2, "rank 0: no memory"), absl::OkStatus());
  v1::RollbackRecipeRequest request;
  request.set_request_id(cluster_.Id());
  request.set_job(job_);
  request.set_expected_revision(-1);
  request.set_revision(2);
  const absl::Status status = cluster_.Do<v1::RollbackRecipeResponse>(request).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("rank 0: no memory"));
}

TEST(WorldSizes, AChangeMustFitEveryWorldSize) {
  TestCluster cluster;
  v1::SubmitJobRequest submit;
  submit.set_request_id(cluster.Id());
  submit.set_spec_yaml(
      "name: train\nmodel: tiny-hybrid\nrecipe: nvfp4\n"
      "data: {train: [corpus.txt], sequence: 16}\ntraining: {steps: 1000, batch: 16}\n");
  for (const int32_t ranks : {1, 8, 16}) submit.mutable_scheduling()->add_allowed_ranks(ranks);
  const auto submitted = cluster.Do<v1::SubmitJobResponse>(submit);
  ASSERT_EQ(submitted.status(), absl::OkStatus());
  v1::SetRecipeRequest set;
  set.set_request_id(cluster.Id());
  set.set_job(submitted->job().id());
  set.set_expected_revision(1);
  v1::FieldSetting& setting = *set.mutable_change()->add_set();
  setting.set_field("all");
  setting.set_value("mxfp8");  // in blocks of 32 tokens
  const absl::Status refused = cluster.Do<v1::SetRecipeResponse>(set).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("revision 2 with 16 ranks: "));
  // The same applies to a recipe at submission.
  submit.set_request_id(cluster.Id());
  submit.set_spec_yaml(
      "name: train\nmodel: tiny-hybrid\nrecipe: {preset: nvfp4, set: {all: mxfp8}}\n"
      "data: {train: [corpus.txt], sequence: 16}\ntraining: {steps: 1000, batch: 16}\n");
  const absl::Status unfit = cluster.Do<v1::SubmitJobResponse>(submit).status();
  EXPECT_EQ(unfit.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(unfit.message()),
              testing::HasSubstr("scheduling.allowed_ranks: revision 1 with 16 ranks: "));
  submit.mutable_scheduling()->mutable_allowed_ranks()->RemoveLast();
  submit.set_request_id(cluster.Id());
  EXPECT_EQ(cluster.Do<v1::SubmitJobResponse>(submit).status(), absl::OkStatus());
}

}  // namespace
}  // namespace nibble
