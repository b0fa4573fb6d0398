#include "client/remote/run_watch.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/remote/job_text.h"
#include "client/remote/watch_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;

RunEvent LogEvent(const std::string& kind, const std::string& fields) {
  const auto event = ParseRunEvent(absl::StrCat(
      R"({"schema":1,"event":")", kind, R"(","time":"2026-01-31T12:00:00.250Z",)", fields, "}"));
  EXPECT_TRUE(event.ok()) << event.status();
  return event.ok() ? *event : RunEvent();
}

RunEvent RunStart(int64_t first_step) {
  return LogEvent("start", absl::StrCat(R"("job":"train","model":"tiny-gpt2","parameters":1000,)",
                                        R"("first_step":)", first_step,
                                        R"(,"steps":20,"tokens_per_step":64,"ranks":1)"));
}
RunEvent RunStep(int64_t step, double loss = 2.5) {
  return LogEvent(
      "step",
      absl::StrCat(R"("step":)", step, R"(,"tokens":)", (step + 1) * 64, R"(,"loss":)", loss,
                   R"(,"updated":true,"tokens_per_second":640,)", R"("seconds":0.1,"revision":1)"));
}
RunEvent RunRevision(int64_t number, int64_t step, const std::string& preset) {
  return LogEvent("revision",
                  absl::StrCat(R"("step":)", step, R"(,"revision":)", number,
                               R"(,"author":"ada","reason":"","recipe":"{\"preset\":\")", preset,
                               R"(\",\"set\":[],\"layers\":[]}","changes":[])"));
}

TEST(RunWatchTest, TheLogOfARunBecomesTheStateOfAWatch) {
  WatchState state;
  RunState run("train", state);
  EXPECT_EQ(state.job().state(), v1::JOB_STATE_STARTING);
  EXPECT_EQ(run.Add(RunStart(0)).event->text(), "started");
  EXPECT_FALSE(run.Add(RunRevision(1, 0, "nvfp4")).event.has_value());
  for (int64_t step = 0; step < 10; ++step) EXPECT_TRUE(run.Add(RunStep(step)).sample);
  const auto stored = run.Add(LogEvent("checkpoint", R"("step":10,"stored":true)"));
  EXPECT_EQ(EventText(*stored.event), "checkpoint of step 10 committed");
  const auto changed = run.Add(RunRevision(2, 10, "bf16"));
  EXPECT_THAT(EventText(*changed.event), HasSubstr("recipe revision 2 is in effect (ada)"));
  EXPECT_EQ(state.job().state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(state.job().revision_in_force(), 2);
  EXPECT_EQ(state.job().checkpoint_step(), 10);
  EXPECT_EQ(state.next_step(), 10);
  ASSERT_EQ(state.revisions().size(), 2u);
  EXPECT_EQ(state.revisions()[1].recipe().preset(), "bf16");
  EXPECT_THAT(SampleLine(state), HasSubstr("step 10/20 (50%)  loss 2.5000"));
  run.Add(LogEvent("finish", R"("steps":20,"reason":"completed")"));
  EXPECT_EQ(state.job().state(), v1::JOB_STATE_SUCCEEDED);
}

TEST(RunWatchTest, ARunThatResumesRepeatsStepsAndIsARestart) {
  WatchState state;
  RunState run("train", state);
  run.Add(RunStart(0));
  run.Add(RunRevision(1, 0, "nvfp4"));
  for (int64_t step = 0; step < 8; ++step) run.Add(RunStep(step));
  EXPECT_EQ(run.Add(RunStart(5)).event->text(), "resumed at step 5");
  EXPECT_FALSE(run.Add(RunRevision(1, 0, "nvfp4")).event.has_value());
  run.Add(RunStep(5, 2.25));
  EXPECT_EQ(state.job().attempts(), 2);
  EXPECT_EQ(state.recent().back().step(), 5);
  EXPECT_EQ(state.revisions().size(), 1u);
  ASSERT_EQ(state.marks().size(), 1u);
  EXPECT_EQ(state.marks()[0], (StepMark{5, 'R'}));
}

TEST(RunWatchTest, TheOperandsOfASampledStepAreSummarised) {
  WatchState state;
  RunState run("train", state);
  run.Add(RunStart(0));
  const auto sample = [&](int64_t step, const std::string& layer, double error) {
    run.Add(
        LogEvent("precision",
                 absl::StrCat(R"("step":)", step, R"(,"layer":")", layer,
                              R"(","operand":"fprop.weight","format":"nvfp4","relative_error":)",
                              error, R"(,"underflow":0.25,"clipped":0.5,"non_finite":1)")));
  };
  sample(0, "old", 0.9);
  for (const double error : {0.1, 0.4, 0.2, 0.3}) sample(5, absl::StrCat("layer ", error), error);
  ASSERT_TRUE(state.precision().has_value());
  EXPECT_EQ(state.precision()->step(), 5);
  EXPECT_EQ(state.precision()->operands(), 4);
  EXPECT_DOUBLE_EQ(state.precision()->mean_relative_error(), 0.25);
  EXPECT_EQ(state.precision()->most_clipped(), 0.5);
  EXPECT_EQ(state.precision()->non_finite(), 4);
  ASSERT_EQ(state.precision()->worst_size(), 3);
  EXPECT_EQ(state.precision()->worst(0).layer(), "layer 0.4");
  EXPECT_EQ(state.precision()->worst(2).layer(), "layer 0.2");
}

TEST(RunWatchTest, OperandsThatAGuardOnlyObservesAreNoEvents) {
  WatchState state;
  RunState run("train", state);
  run.Add(RunStart(0));
  const std::string rest = R"("step":3,"guard":"clipped","detail":"above 0.1",)";
  EXPECT_FALSE(run.Add(LogEvent("guard", rest + R"("action":"observed","operands":["a"])"))
                   .event.has_value());
  const auto skipped = run.Add(LogEvent("guard", rest + R"("action":"skipped","operands":["a"])"));
  EXPECT_EQ(EventText(*skipped.event), "clipped guard skipped: above 0.1");
}

TEST(RunWatchTest, AnErrorOfTheLogIsTheReasonOfTheFailure) {
  WatchState state;
  RunState run("train", state);
  run.Add(RunStart(0));
  run.Add(LogEvent("error", R"("step":3,"code":"data","message":"corpus.txt: no such file")"));
  EXPECT_EQ(state.job().state(), v1::JOB_STATE_FAILED);
  EXPECT_THAT(JobLine(state.job()), HasSubstr("data: corpus.txt: no such file"));
}

}  // namespace
}  // namespace nibble
