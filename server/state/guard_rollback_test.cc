// Rollbacks by guards: the checkpoint from which the next attempt resumes, the revision under which
// it runs, and their bound.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "job/job_spec.h"
#include "server/state/entities.h"
#include "server/state/limits.h"
#include "server/state/testing.h"
#include "server/state/timeline_record.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kSpike[] = "guards.spike: roll_back; step 47: a spike";

class GuardRollbackTest : public testing::Test {
 protected:
  GuardRollbackTest() { cluster_.AddWorkers(3, 2); }

  // Checkpoints every 10 steps; guards with a margin of 10.
  void Submit(const std::string& guards) {
    v1::SubmitJobRequest request;
    request.set_request_id(cluster_.Id());
    request.set_spec_yaml(absl::StrCat(TestCluster::Spec("train", 4), "checkpoints: {every: 10}\n",
                                       "guards: {rollback_margin: 10", guards, "}\n"));
    const auto response = cluster_.Do<v1::SubmitJobResponse>(request);
    ASSERT_EQ(response.status(), absl::OkStatus());
    job_ = response->job().id();
  }
  const v1::JobRecord& Job() const { return cluster_.Job(job_); }
  // Launches an attempt, which is to resume from the step; -1: to begin.
  void Start(int64_t from, const std::vector<int64_t>& checkpoints = {}) {
    cluster_.now_ms += kMaxBackoffMs;
    ASSERT_EQ(cluster_.Start(job_), absl::OkStatus());
    EXPECT_EQ(Job().attempt().has_resume(), from >= 0);
    EXPECT_EQ(Job().attempt().resume().step(), std::max<int64_t>(from, 0));
    for (const int64_t step : checkpoints) {
      ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
    }
  }
  // The ranks of a worker end for a rollback.
  void RollBack(int64_t step, const std::string& guard = "spike", int64_t harmed = 1,
                const std::vector<std::string>& layers = {}, const std::string& worker = "w1") {
    v1::GangReport report;
    report.set_job(job_);
    report.set_attempt(Job().last_attempt());
    report.set_phase(v1::RANK_PHASE_FAILED);
    report.set_next_step(step);
    report.set_detail(kSpike);
    report.set_cause(v1::FAILURE_CAUSE_GUARD_ROLLBACK);
    if (worker == "w1") {
      v1::GuardDecision& decision = *report.add_decided();
      decision.set_step(step);
      decision.set_guard(guard);
      decision.set_action("roll_back");
      decision.set_harmed_steps(harmed);
      *decision.mutable_layers() = {layers.begin(), layers.end()};
    }
    ASSERT_EQ(
        cluster_.Run(DecideGangReport(cluster_.state(), worker, 1, report, cluster_.caller())),
        absl::OkStatus());
  }
  // The steps of the checkpoints that no attempt resumes from.
  std::vector<int64_t> Harmed() const {
    std::vector<int64_t> steps;
    for (const v1::Checkpoint* checkpoint : cluster_.state().CheckpointsOf(job_)) {
      EXPECT_EQ(checkpoint->harmed(), checkpoint->left());
      if (checkpoint->harmed()) steps.push_back(checkpoint->ref().step());
    }
    return steps;
  }
  const v1::RecipeRevision& Latest() const {
    return *cluster_.state().FindTimeline(job_)->revisions().rbegin();
  }
  double LrScaleAt(int64_t step) const {
    return ToTimeline(*cluster_.state().FindTimeline(job_))->At(step).lr_scale;
  }
  void ExpectTheSameStateFromItsStore() const {
    const auto loaded = Load(cluster_.store());
    ASSERT_EQ(loaded.status(), absl::OkStatus());
    ASSERT_NE(loaded->NewestGood(job_), nullptr);
    EXPECT_EQ(loaded->NewestGood(job_)->ref().step(),
              cluster_.state().NewestGood(job_)->ref().step());
  }

  TestCluster cluster_;
  std::string job_;
};

TEST_F(GuardRollbackTest, TheNextAttemptResumesFromACheckpointBeforeTheHarm) {
  Submit("");
  Start(-1, {10, 20, 30, 40});
  RollBack(47);  // 46 is good, less the margin 36
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(Harmed(), ElementsAre(40));
  EXPECT_EQ(Latest().first_step(), 30);
  EXPECT_EQ(Latest().author(), "guard");
  EXPECT_THAT(Latest().reason(), StartsWith("rolled back: guards.spike: roll_back; step 47"));
  ASSERT_EQ(Latest().recipe().layers_size(), 1);
  EXPECT_EQ(Latest().recipe().layers(0).match(), "*");
  EXPECT_EQ(Latest().recipe().layers(0).set(0).value(), "bf16");
  ExpectTheSameStateFromItsStore();
  Start(30);
  // Nor does a later attempt resume from the abandoned checkpoint.
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 33, 0, "killed",
                            v1::FAILURE_CAUSE_MACHINE),
            absl::OkStatus());
  Start(30, {40});
  EXPECT_EQ(cluster_.state().NewestGood(job_)->ref().attempt(), 3);
}

TEST_F(GuardRollbackTest, WithoutTheFirstCheckpointTheOldestThatIsLeftCountsFromItsStepOn) {
  Submit("");
  Start(-1, {20});  // that of step 10 was deleted
  RollBack(21);     // 20 is good, less the margin 10: the step of the first checkpoint
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(Harmed(), IsEmpty());
  Start(20);
}

TEST_F(GuardRollbackTest, StepsWithFindingsBeforeTheLastOneCountAsHarmed) {
  Submit("");
  Start(-1, {10, 20, 30, 40});
  RollBack(47, "spike", 8);  // 39 is good, less the margin 29
  EXPECT_THAT(Harmed(), ElementsAre(30, 40));
  Start(20);
}

TEST_F(GuardRollbackTest, ARollbackSoonAfterAnotherGoesFurtherBackAndThenTheJobIsPaused) {
  Submit("");
  Start(-1, {10, 20, 30, 40});
  RollBack(47);
  Start(30);
  RollBack(33);
  EXPECT_THAT(Harmed(), ElementsAre(30, 40));
  Start(20);
  RollBack(25);
  EXPECT_EQ(Job().state(), v1::JOB_STATE_PAUSED);
  EXPECT_EQ(Job().goal_author(), "guard");
  EXPECT_THAT(Job().state_reason(), StartsWith("rolled back 2 times in a row: attempt 1 from step "
                                               "0: guards.spike: roll_back; step 47: a spike"));
  EXPECT_THAT(Job().state_reason(), HasSubstr("; attempt 2 from step 30: guards.spike"));
  EXPECT_THAT(Job().state_reason(), HasSubstr("; attempt 3 from step 20: guards.spike"));
  EXPECT_EQ(Job().restarts_without_progress(), 0);
  EXPECT_EQ(Job().blames_size(), 0);
  // A person who resumes it finds the harmed checkpoints abandoned, too.
  EXPECT_THAT(Harmed(), ElementsAre(20, 30, 40));
}

TEST_F(GuardRollbackTest, ARunWithoutAnEarlierCheckpointBeginsAgain) {
  Submit("");
  Start(-1, {10, 20});
  RollBack(15);  // 14 is good, less the margin 4
  EXPECT_THAT(Harmed(), ElementsAre(10, 20));
  EXPECT_EQ(Latest().first_step(), 0);
  Start(-1);
}

TEST_F(GuardRollbackTest, IfOlderCheckpointsAreGoneTheOldestIsTriedOnceThenTheJobIsPaused) {
  Submit(", max_rollbacks: 7");
  Start(-1, {30, 40});
  RollBack(33);  // 22
  EXPECT_THAT(Harmed(), ElementsAre(40));
  Start(30);
  RollBack(36);
  EXPECT_EQ(Job().state(), v1::JOB_STATE_PAUSED);
  EXPECT_THAT(
      Job().state_reason(),
      StartsWith("cannot be rolled back further: no checkpoint of step 25 or before is left "
                 "(guards.rollback_margin: 10), and the oldest, of step 30, was tried: "
                 "attempt 1 from step 0: "));
  EXPECT_THAT(Harmed(), ElementsAre(40));
}

TEST_F(GuardRollbackTest, TheLearningRateIsLoweredByEachRollbackOfTheLoss) {
  Submit(", rollback_lr_scale: 0.5");
  Start(-1, {10, 20, 30, 40});
  RollBack(47);
  EXPECT_THAT(Latest().reason(), StartsWith("learning rate times 0.5, rolled back: "));
  // No layer is to blame for the loss.
  EXPECT_THAT(Latest().recipe().layers(), IsEmpty());
  EXPECT_EQ(LrScaleAt(29), 1);
  EXPECT_EQ(LrScaleAt(30), 0.5);
  Start(30);
  RollBack(33, "gradient-norm");
  EXPECT_EQ(LrScaleAt(19), 1);
  EXPECT_EQ(LrScaleAt(20), 0.25);
  EXPECT_EQ(LrScaleAt(30), 0.25);
  // A person's change keeps it, and returning to the first revision undoes it.
  v1::SetRecipeRequest change;
  change.set_request_id(cluster_.Id());
  change.set_job(job_);
  change.set_expected_revision(-1);
  change.set_at("step:60");
  v1::FieldSetting& setting = *change.mutable_change()->add_set();
  setting.set_field("dgrad");
  setting.set_value("mxfp8");
  ASSERT_EQ(cluster_.Do<v1::SetRecipeResponse>(change).status(), absl::OkStatus());
  EXPECT_EQ(LrScaleAt(60), 0.25);
  v1::RollbackRecipeRequest back;
  back.set_request_id(cluster_.Id());
  back.set_job(job_);
  back.set_expected_revision(-1);
  back.set_revision(1);
  back.set_at("step:70");
  ASSERT_EQ(cluster_.Do<v1::RollbackRecipeResponse>(back).status(), absl::OkStatus());
  EXPECT_EQ(LrScaleAt(70), 1);
}

TEST_F(GuardRollbackTest, LayersThatTheSpecNamesArePromotedTogetherWithALowerLearningRate) {
  Submit(", rollback_lr_scale: 0.5, promote_layers: last 2 blocks");
  Start(-1, {10, 20, 30, 40});
  RollBack(47);
  ASSERT_EQ(Latest().recipe().layers_size(), 1);
  EXPECT_EQ(Latest().recipe().layers(0).match(), "last 2 blocks");
  EXPECT_EQ(LrScaleAt(30), 0.5);
}

TEST_F(GuardRollbackTest, AGuardOfOperandsThatNamesNoLayersPromotesAll) {
  Submit(", rollback_lr_scale: 0.5");
  Start(-1, {10, 20, 30, 40});
  RollBack(47, "underflow");
  ASSERT_EQ(Latest().recipe().layers_size(), 1);
  EXPECT_EQ(Latest().recipe().layers(0).match(), "*");
  EXPECT_EQ(LrScaleAt(30), 1);
}

TEST_F(GuardRollbackTest, AGuardOfOperandsPromotesTheLayersThatItFoundAndKeepsTheLearningRate) {
  Submit(", rollback_lr_scale: 0.5");
  Start(-1, {10, 20, 30, 40});
  RollBack(47, "underflow", 1, {"blocks.1.mlp.up", "blocks.4.mlp.down"});
  ASSERT_EQ(Latest().recipe().layers_size(), 2);
  EXPECT_EQ(Latest().recipe().layers(0).match(), "blocks.1.mlp.up");
  EXPECT_EQ(Latest().recipe().layers(1).match(), "blocks.4.mlp.down");
  EXPECT_EQ(LrScaleAt(30), 1);
  // A rollback further back keeps these layers from there on.
  Start(30);
  RollBack(33, "underflow", 1, {"blocks.6.mlp.up"});
  const Timeline timeline = *ToTimeline(*cluster_.state().FindTimeline(job_));
  std::vector<std::string> layers;
  for (const LayerRule& rule : timeline.At(20).recipe.layers) layers.push_back(rule.match);
  EXPECT_THAT(layers, ElementsAre("blocks.1.mlp.up", "blocks.4.mlp.down", "blocks.6.mlp.up"));
}

TEST_F(GuardRollbackTest, ARollbackThatChangesNothingAddsNoRevision) {
  Submit("");
  Start(-1, {10, 20, 30, 40});
  RollBack(47);
  Start(30, {40, 50});
  RollBack(62);  // 51
  EXPECT_EQ(cluster_.state().FindTimeline(job_)->revisions_size(), 2);
  Start(50);
}

TEST_F(GuardRollbackTest, TheWorkerOfRankZeroReportsWhatTheGuardFound) {
  Submit("");
  Start(-1, {10, 20, 30, 40});
  RollBack(47, "", 1, {}, "w2");
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RUNNING);
  RollBack(47);
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING);
  EXPECT_THAT(Harmed(), ElementsAre(40));
}

TEST_F(GuardRollbackTest, AReportWithoutTheDecisionIsThatOfItsStep) {
  Submit("");
  Start(-1, {10, 20, 30, 40});
  ASSERT_EQ(cluster_.Report(job_, "w1", v1::RANK_PHASE_FAILED, 47, 0, kSpike,
                            v1::FAILURE_CAUSE_GUARD_ROLLBACK),
            absl::OkStatus());
  EXPECT_THAT(Harmed(), ElementsAre(40));
}

TEST_F(GuardRollbackTest, RevisionsThatLeftTheTimelineReturnForAnEarlierStep) {
  Submit(", max_rollbacks: 7");
  Start(-1);
  // Many revisions run, then checkpoints make room in the timeline.
  int64_t step = 0;
  const auto change = [&](int64_t number) {
    v1::SetRecipeRequest request;
    request.set_request_id(cluster_.Id());
    request.set_job(job_);
    request.set_expected_revision(-1);
    request.set_at(absl::StrCat("step:", step));
    v1::FieldSetting& setting = *request.mutable_change()->add_set();
    setting.set_field("dgrad");
    setting.set_value(number % 2 == 0 ? "mxfp8" : "bf16");
    cluster_.live = {};
    return cluster_.Do<v1::SetRecipeResponse>(request).status();
  };
  for (int64_t number = 2; number < kManyRevisions + 20; ++number) {
    step = number;
    ASSERT_EQ(change(number), absl::OkStatus()) << number;
    v1::GangReport report;
    report.set_job(job_);
    report.set_attempt(1);
    report.set_phase(v1::RANK_PHASE_RUNNING);
    report.set_next_step(step + 1);
    v1::RevisionStart& start = *report.add_revisions();
    start.set_revision(number);
    start.set_first_step(step);
    ASSERT_EQ(cluster_.Run(DecideGangReport(cluster_.state(), "w1", 1, report, cluster_.caller())),
              absl::OkStatus());
    if (step % 10 != 0) continue;
    ASSERT_EQ(cluster_.Checkpoint(job_, step), absl::OkStatus());
  }
  ASSERT_GT(cluster_.state().FindTimeline(job_)->archived(), 0);
  ASSERT_GT(cluster_.state().FindTimeline(job_)->revisions(0).first_step(), 40);
  RollBack(52);  // 41
  EXPECT_EQ(Job().state(), v1::JOB_STATE_RECOVERING) << Job().state_reason();
  const v1::TimelineRecord& timeline = *cluster_.state().FindTimeline(job_);
  EXPECT_LE(timeline.revisions(0).first_step(), 40);
  EXPECT_EQ(ToTimeline(timeline)->At(40).author, "guard");
  EXPECT_EQ(ToTimeline(timeline)->At(41).author, "ann");  // the later ones, with the change
  Start(40);
  ExpectTheSameStateFromItsStore();
}

}  // namespace
}  // namespace nibble
