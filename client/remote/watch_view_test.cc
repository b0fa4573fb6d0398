#include "client/remote/watch_view.h"

#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/remote/job_text.h"
#include "common/text/text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNow = 1'000'000'000'000;

v1::StepSample Sample(int64_t step, double loss) {
  v1::StepSample sample;
  sample.set_step(step);
  sample.set_loss(loss);
  sample.set_gradient_norm(0.5);
  sample.set_learning_rate(1e-3);
  sample.set_tokens_per_second(12'345);
  sample.set_step_seconds(0.5);
  sample.set_revision(2);
  sample.set_updated(true);
  return sample;
}

v1::RecipeRevision Revision(int64_t number, int64_t first_step, const std::string& value,
                            const std::string& reason) {
  v1::RecipeRevision revision;
  revision.set_number(number);
  revision.set_first_step(first_step);
  revision.set_reason(reason);
  revision.mutable_recipe()->set_preset("nvfp4");
  v1::FieldSetting& setting = *revision.mutable_recipe()->add_set();
  setting.set_field("fprop");
  setting.set_value(value);
  return revision;
}

class WatchViewTest : public testing::Test {
 protected:
  WatchViewTest() {
    job_.set_id("train-7");
    job_.set_owner("ann");
    job_.set_state(v1::JOB_STATE_RUNNING);
    job_.set_goal(v1::JOB_GOAL_RUN);
    job_.set_state_since_unix_ms(kNow - 125'000);
    job_.mutable_scheduling()->set_queue("default");
    job_.mutable_shape()->set_steps(1000);
    job_.set_next_step(100);
    job_.set_revision_in_force(2);
    v1::Attempt& attempt = *job_.mutable_attempt();
    attempt.set_number(1);
    attempt.set_world(2);
    v1::Placement& placement = *attempt.add_placements();
    placement.set_worker("w1");
    placement.add_slots(0);
    placement.add_slots(1);
    placement.set_phase(v1::RANK_PHASE_RUNNING);
    state_.SetJob(job_);
  }

  std::string Render(int columns, int rows, const std::string& note = "") {
    return absl::StrJoin(RenderWatch(state_, {columns, rows}, kNow, note), "\n");
  }

  v1::Job job_;
  WatchState state_;
};

TEST_F(WatchViewTest, ARunningJobIsShownInFull) {
  for (int i = 0; i < 8; ++i) state_.AddSample(Sample(92 + i, 4.7 - 0.1 * i));
  state_.SetRevisions({Revision(1, 0, "nvfp4", ""), Revision(2, 50, "mxfp8", ""),
                       Revision(3, 800, "bf16", "to recover")});
  v1::JobEvent event;
  event.set_number(1);
  event.set_time_unix_ms(kNow);
  event.set_kind(v1::JOB_EVENT_KIND_MOVED);
  event.set_from(v1::JOB_STATE_STARTING);
  event.set_to(v1::JOB_STATE_RUNNING);
  event.set_text("every rank runs");
  event.set_author("coordinator");
  EXPECT_TRUE(state_.AddEvent(event));
  EXPECT_FALSE(state_.AddEvent(event));
  EXPECT_EQ(Render(80, 24),
            "train-7  running  2m05s  ann, queue default\n"
            "[===>                                  ]  100/1000  10%  12.3k tok/s  eta 7m30s\n"
            "loss      4.0000  █▇▆▅▄▃▂▁  gradient 0.5  lr 0.001\n"
            "recipe    r2  nvfp4, fprop=mxfp8\n"
            "          r3 from step 800  nvfp4, fprop=bf16: to recover\n"
            "attempt   1  2 ranks\n"
            "          w1: ranks 0-1 running\n"
            "01:46:40  starting → running: every rank runs (coordinator)");
}

TEST_F(WatchViewTest, TheViewFitsTheTerminal) {
  for (int i = 0; i < 100; ++i) state_.AddSample(Sample(i, 5 - 0.01 * i));
  for (int i = 1; i <= 20; ++i) {
    v1::JobEvent event;
    event.set_number(i);
    event.set_text(std::string(300, 'x'));
    state_.AddEvent(event);
  }
  for (const int columns : {1, 2, 20, 61, 200}) {
    for (const int rows : {1, 3, 8, 50}) {
      const auto lines = RenderWatch(state_, {columns, rows}, kNow, "the coordinator is away");
      EXPECT_LE(lines.size(), static_cast<size_t>(std::max(2, rows - 1)));
      EXPECT_EQ(lines.back(), Fit("the coordinator is away", std::max(1, columns - 1)));
      for (const std::string& line : lines) {
        EXPECT_LE(WidthOf(line), static_cast<size_t>(std::max(1, columns - 1))) << line;
      }
    }
  }
}

TEST_F(WatchViewTest, TheReasonOfAJobThatDoesNotRunIsShown) {
  job_.set_state(v1::JOB_STATE_QUEUED);
  job_.set_state_reason("needs 8 slots; 6 free on 2 workers");
  job_.clear_attempt();
  state_.SetJob(job_);
  EXPECT_THAT(Render(80, 24), HasSubstr("\nwhy       needs 8 slots; 6 free on 2 workers"));
  EXPECT_THAT(Render(80, 24), HasSubstr("no step yet"));
  EXPECT_THAT(Render(80, 24), Not(HasSubstr("eta")));
}

TEST_F(WatchViewTest, TheReasonOfAFailureIsCompleteOnANarrowScreen) {
  const std::string cause =
      "rank 3 on w7 ended with exit code 1: data.train[0].path: there is no corpus/books.tokens; "
      "3 failures in a row without a new checkpoint";
  job_.set_state(v1::JOB_STATE_FAILED);
  job_.set_state_reason(cause);
  job_.clear_attempt();
  state_.SetJob(job_);
  std::string seen;
  for (const std::string& line : RenderWatch(state_, {41, 40}, kNow, "")) {
    EXPECT_LE(WidthOf(line), 40u);
    if (absl::StartsWith(line, "recipe")) break;
    absl::StrAppend(&seen, line.size() > 10 ? line.substr(10) : "", " ");
  }
  EXPECT_THAT(seen, HasSubstr(cause));
  EXPECT_THAT(JobTable({job_}, kNow), HasSubstr(cause));
}

TEST_F(WatchViewTest, SilentAndFlaggedWorkersAreMarked) {
  v1::Worker worker;
  worker.mutable_identity()->set_name("w1");
  worker.set_present(true);
  worker.set_last_heard_ms(8000);
  worker.set_mode(v1::WORKER_MODE_DRAINING);
  worker.add_flags("ended two attempts");
  state_.SetWorkers({worker});
  EXPECT_THAT(Render(120, 24),
              HasSubstr("w1: ranks 0-1 running  silent for 8s  draining  ! ended two attempts"));
}

TEST_F(WatchViewTest, RepeatedStepsReplaceEarlierSamples) {
  for (int i = 0; i < 100; ++i) state_.AddSample(Sample(i, 5));
  state_.AddSample(Sample(60, 4));
  EXPECT_EQ(state_.samples().size(), 61u);
  EXPECT_EQ(state_.samples().back().loss(), 4);
}

TEST_F(WatchViewTest, TheStateIsBoundedAndKeepsItsFirstSample) {
  for (int i = 0; i < 100'000; ++i) state_.AddSample(Sample(i, 5));
  EXPECT_LE(state_.samples().size(), WatchState::kMostSamples);
  EXPECT_EQ(state_.samples().front().step(), 0);
  EXPECT_EQ(state_.samples().back().step(), 99'999);
}

TEST_F(WatchViewTest, ASampleLineHasStepLossSpeedAndRecipe) {
  state_.AddSample(Sample(99, 4.25));
  EXPECT_EQ(SampleLine(state_),
            "step 100/1000 (10%)  loss 4.2500  12.3k tok/s  eta 7m30s  recipe r2");
}

}  // namespace
}  // namespace nibble
