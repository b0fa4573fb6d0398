#include "worker/trainer/report/progress.h"

#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

class ProgressTest : public testing::Test {
 protected:
  Progress::Options Plain(int64_t steps, double seconds) {
    return {.clock = [this] { return now_; }, .line_steps = steps, .line_seconds = seconds};
  }
  Progress::Options Terminal(int columns) {
    return {.terminal = true,
            .columns = [columns] { return columns; },
            .clock = [this] { return now_; },
            .redraw_seconds = 1};
  }
  Progress::Step Step(int64_t step) {
    return {.step = step,
            .tokens = 1000,
            .loss = 5.0 - 0.1 * static_cast<double>(step),
            .learning_rate = 0.01,
            .revision = 1,
            .recipe = "nvfp4"};
  }
  std::vector<std::string> Lines() { return absl::StrSplit(out_.str(), '\n', absl::SkipEmpty()); }

  double now_ = 1000;
  std::ostringstream out_;
};

TEST_F(ProgressTest, APipeGetsPlainLinesWithSpeedAndRemainingTime) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(0, 3);
  for (int64_t step = 0; step < 3; ++step) {
    now_ += 2;
    progress.StepDone(Step(step));
  }
  EXPECT_EQ(out_.str(),
            "step 1/3 (33%)  loss 5.0000  lr 0.01  500 tok/s  eta 4s  recipe r1 nvfp4\n"
            "step 2/3 (66%)  loss 4.9000  lr 0.01  500 tok/s  eta 2s  recipe r1 nvfp4\n"
            "step 3/3 (100%)  loss 4.8000  lr 0.01  500 tok/s  eta 0s  recipe r1 nvfp4\n");
}

TEST_F(ProgressTest, LinesComeAtMostEverySoManySteps) {
  Progress progress(Plain(10, 0), out_);
  progress.Start(0, 25);
  for (int64_t step = 0; step < 25; ++step) progress.StepDone(Step(step));
  EXPECT_THAT(Lines(), ElementsAre(StartsWith("step 1/25 "), StartsWith("step 11/25 "),
                                   StartsWith("step 21/25 "), StartsWith("step 25/25 ")));
}

TEST_F(ProgressTest, LinesComeAtMostEverySoManySeconds) {
  Progress progress(Plain(1, 5), out_);
  progress.Start(0, 100);
  for (int64_t step = 0; step < 12; ++step) {
    now_ += 1;
    progress.StepDone(Step(step));
  }
  EXPECT_THAT(Lines(), ElementsAre(StartsWith("step 1/100 "), StartsWith("step 6/100 "),
                                   StartsWith("step 11/100 ")));
}

TEST_F(ProgressTest, ARunThatGoesOnCountsFromWhereItWas) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(90, 100);
  now_ += 1;
  progress.StepDone(Step(90));
  EXPECT_THAT(out_.str(), StartsWith("step 91/100 (91%)"));
  EXPECT_THAT(out_.str(), HasSubstr("1.00k tok/s  eta 9s"));
}

TEST_F(ProgressTest, ATerminalIsDrawnInPlace) {
  {
    Progress progress(Terminal(80), out_);
    progress.Start(0, 100);
    for (int64_t step = 0; step < 3; ++step) {
      now_ += 1;
      progress.StepDone(Step(step));
    }
    EXPECT_THAT(out_.str(), Not(HasSubstr("\n")));
  }
  EXPECT_THAT(out_.str(), EndsWith("\x1b[K\n"));
  const std::vector<std::string> drawings = absl::StrSplit(out_.str(), '\r', absl::SkipEmpty());
  ASSERT_THAT(drawings, SizeIs(3));
  for (const std::string& drawing : drawings) {
    const size_t end = drawing.find("\x1b[K");
    ASSERT_NE(end, std::string::npos);
    EXPECT_LE(end, 79u);  // the last column stays free
  }
  EXPECT_THAT(drawings[2], StartsWith("3/100 ["));
}

TEST_F(ProgressTest, ATerminalIsNotDrawnTooOften) {
  Progress progress(Terminal(80), out_);
  progress.Start(0, 1000);
  for (int64_t step = 0; step < 100; ++step) {
    now_ += 0.0625;
    progress.StepDone(Step(step));
  }
  const std::vector<std::string> drawings = absl::StrSplit(out_.str(), '\r', absl::SkipEmpty());
  EXPECT_THAT(drawings, SizeIs(7));  // the first, then one each of the 6 seconds
}

TEST_F(ProgressTest, NotesStandAboveTheBar) {
  Progress progress(Terminal(80), out_);
  progress.Start(0, 100);
  progress.Note("before the bar");
  EXPECT_EQ(out_.str(), "before the bar\n");
  progress.StepDone(Step(0));
  out_.str("");
  progress.Note("revision 2 is in force");
  EXPECT_THAT(out_.str(), StartsWith("\r\x1b[Krevision 2 is in force\n\r1/100 ["));
}

TEST_F(ProgressTest, ValidationIsToldAndDoesNotSlowTheSteps) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(0, 10);
  now_ += 1;
  progress.StepDone(Step(0));
  now_ += 100;
  progress.ValidationDone("wiki", 4.25);
  now_ += 1;
  progress.StepDone(Step(1));
  EXPECT_THAT(Lines()[1], "step 1  validation wiki 4.2500");
  EXPECT_THAT(Lines()[2], HasSubstr("val 4.2500"));
  EXPECT_EQ(progress.state().eta_seconds, 8);
}

TEST_F(ProgressTest, SkippedStepsAreCounted) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(0, 10);
  Progress::Step step = Step(0);
  step.updated = false;
  progress.StepDone(step);
  progress.StepDone(Step(1));
  EXPECT_THAT(Lines()[1], EndsWith("skipped 1"));
}

TEST_F(ProgressTest, AClockThatStandsStillMakesNoSpeed) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(0, 10);
  progress.StepDone(Step(0));
  EXPECT_THAT(out_.str(), Not(HasSubstr("tok/s")));
  EXPECT_THAT(out_.str(), Not(HasSubstr("eta")));
}

}  // namespace
}  // namespace nibble
