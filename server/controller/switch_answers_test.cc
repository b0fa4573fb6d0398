// The step that the answer to a change of a recipe names, and when it is sent.
#include "server/controller/switch_answers.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/controller/controller.h"
#include "server/controller/testing.h"

namespace nibble {
namespace {

using testing::HasSubstr;

// A running job whose ranks last reported step 50 as their next one.
class SwitchAnswersTest : public testing::Test {
 protected:
  using Response = v1::SetRecipeResponse;

  SwitchAnswersTest() : job_(worker_.RunJob(2, 50)) {}

  void Set(const std::string& at) {
    v1::SetRecipeRequest request;
    request.set_request_id("request-of-" + std::to_string(++requests_));
    request.set_job(job_);
    request.set_expected_revision(-1);
    request.set_at(at);
    v1::FieldSetting& setting = *request.mutable_change()->add_set();
    setting.set_field("fprop");
    setting.set_value("bf16");
    answer_.reset();
    coordinator_.controller().requests().Change<Response>(
        request, "ann", [this](absl::StatusOr<Response> response) {
          answer_ = response;
          if (response.ok()) steps_[response->revision()] = response->first_step();
        });
    coordinator_.controller().Settle();
  }
  v1::GangReport& gang() { return *worker_.report.mutable_gangs(0); }
  void Report(int64_t next_step, double step_seconds) {
    gang().set_next_step(next_step);
    gang().clear_samples();
    v1::StepSample& sample = *gang().add_samples();
    sample.set_step(next_step - 1);
    sample.set_step_seconds(step_seconds);
    ASSERT_EQ(worker_.Report(), absl::OkStatus());
  }
  void ReportSwitch(int64_t revision, int64_t first_step) {
    v1::RevisionStart& start = *gang().add_revisions();
    start.set_revision(revision);
    start.set_first_step(first_step);
    ASSERT_EQ(worker_.Report(), absl::OkStatus());
  }

  TestCoordinator coordinator_;
  TestWorker worker_{coordinator_, "w1", 2};
  const std::string job_;
  std::optional<absl::StatusOr<Response>> answer_;
  std::map<int64_t, int64_t> steps_;  // the answered steps, by revision
  int requests_ = 0;
};

TEST_F(SwitchAnswersTest, AChangeNowIsAnsweredWithTheStepThatRanksAgreeOn) {
  Set("now");
  EXPECT_FALSE(answer_.has_value());
  coordinator_.Tick();
  EXPECT_FALSE(answer_.has_value());
  ReportSwitch(2, 73);
  ASSERT_TRUE(answer_.has_value());
  ASSERT_EQ(answer_->status(), absl::OkStatus());
  EXPECT_EQ((*answer_)->revision(), 2);
  EXPECT_EQ((*answer_)->first_step(), 73);
}

TEST_F(SwitchAnswersTest, IfAStepTakesLongerThanTheWaitTheAnswerNamesTheNextOne) {
  Set("now");
  Report(51, 10);
  coordinator_.clock.Advance(999);
  coordinator_.Tick();
  EXPECT_FALSE(answer_.has_value());
  coordinator_.clock.Advance(1);
  coordinator_.Tick();
  ASSERT_TRUE(answer_.has_value());
  ASSERT_EQ(answer_->status(), absl::OkStatus());
  EXPECT_EQ((*answer_)->first_step(), 52);
}

TEST_F(SwitchAnswersTest, ARepeatedRequestIsAnsweredWithTheStepThatRanksAgreedOn) {
  Set("now");
  ReportSwitch(2, 73);
  --requests_;
  Set("now");
  ASSERT_TRUE(answer_.has_value());
  ASSERT_EQ(answer_->status(), absl::OkStatus());
  EXPECT_EQ((*answer_)->first_step(), 73);
}

TEST_F(SwitchAnswersTest, ASupersededRevisionIsAnsweredWithTheStepOfTheLaterOne) {
  Set("now");
  Set("now");
  EXPECT_TRUE(steps_.empty());
  ReportSwitch(3, 60);
  EXPECT_EQ(steps_, (std::map<int64_t, int64_t>{{2, 60}, {3, 60}}));
}

TEST_F(SwitchAnswersTest, ARefusedRevisionIsAnsweredWithTheRanksReason) {
  Set("now");
  v1::RefusedRevision& refused = *gang().add_refused();
  refused.set_revision(2);
  refused.set_reason("rank 1: no memory");
  ASSERT_EQ(worker_.Report(), absl::OkStatus());
  ASSERT_TRUE(answer_.has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition(answer_->status()));
  EXPECT_THAT(std::string(answer_->status().message()), HasSubstr("rank 1: no memory"));
}

TEST_F(SwitchAnswersTest, AStepThatRanksMayHavePassedIsAnsweredWhenTheySwitch) {
  Report(51, 0.01);
  Set("step:60");
  EXPECT_FALSE(answer_.has_value());
  ReportSwitch(2, 77);
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ((*answer_)->first_step(), 77);
}

TEST_F(SwitchAnswersTest, AStepFarAheadIsAnsweredAtOnce) {
  Report(51, 0.01);
  Set("step:900");
  ASSERT_TRUE(answer_.has_value());
  ASSERT_EQ(answer_->status(), absl::OkStatus());
  EXPECT_EQ((*answer_)->first_step(), 900);
}

TEST_F(SwitchAnswersTest, AChangeOfAPausedJobIsAnsweredAtOnceWithItsNextStep) {
  v1::PauseJobRequest pause;
  pause.set_job(job_);
  ASSERT_EQ(coordinator_.Do<v1::PauseJobResponse>(pause).status(), absl::OkStatus());
  gang().set_phase(v1::RANK_PHASE_PAUSED);
  gang().set_next_step(58);
  ASSERT_EQ(worker_.Report(), absl::OkStatus());
  ASSERT_EQ(coordinator_.Job(job_).state(), v1::JOB_STATE_PAUSED);
  Set("now");
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ((*answer_)->first_step(), 58);
}

TEST_F(SwitchAnswersTest, AWaitingChangeIsAnsweredWhenTheGangEnds) {
  Set("now");
  gang().set_phase(v1::RANK_PHASE_FAILED);
  ASSERT_EQ(worker_.Report(), absl::OkStatus());
  ASSERT_TRUE(answer_.has_value());
  EXPECT_EQ(answer_->status(), absl::OkStatus());
}

TEST_F(SwitchAnswersTest, StopWaitingAnswersWaitingAndLaterChangesAtOnce) {
  Set("now");
  EXPECT_FALSE(answer_.has_value());
  coordinator_.controller().StopWaiting();
  EXPECT_TRUE(answer_.has_value());
  Set("now");
  EXPECT_TRUE(answer_.has_value());
}

}  // namespace
}  // namespace nibble
