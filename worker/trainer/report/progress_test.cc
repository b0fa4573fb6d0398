#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/report/progress.h"

namespace nibble {
namespace {

TEST(PaceTest, NothingIsKnownBeforeAStepHasTakenTime) {
  Pace pace;
  pace.Start(100);
  EXPECT_EQ(pace.tokens_per_second(), 0);
  EXPECT_EQ(pace.seconds_per_step(), 0);
  pace.Step(100, 64);
  EXPECT_EQ(pace.tokens_per_second(), 0);
}

TEST(PaceTest, SpeedIsTokensOverTime) {
  Pace pace;
  pace.Start(100);
  pace.Step(101, 64);
  pace.Step(104, 64);
  EXPECT_EQ(pace.tokens_per_second(), 32);
  EXPECT_EQ(pace.seconds_per_step(), 2);
}

TEST(PaceTest, OnlyTheLastStepsCount) {
  Pace pace;
  pace.Start(0);
  double now = 1000;
  pace.Step(now, 64);  // the first step is slow
  for (size_t i = 0; i < Pace::kSteps; ++i) pace.Step(now += 0.5, 64);
  EXPECT_EQ(pace.seconds_per_step(), 0.5);
  EXPECT_EQ(pace.tokens_per_second(), 128);
}

TEST(PaceTest, PausesBelongToNoStep) {
  Pace pace;
  pace.Start(0);
  pace.Step(1, 10);
  pace.Pause(50);
  pace.Step(51, 10);
  EXPECT_EQ(pace.seconds_per_step(), 1);
}

TEST(PaceTest, AStartForgets) {
  Pace pace;
  pace.Start(0);
  pace.Step(1, 10);
  pace.Start(5);
  EXPECT_EQ(pace.tokens_per_second(), 0);
}

using ::testing::HasSubstr;
using ::testing::Not;

ProgressState Middle() {
  return {.done = 120,
          .steps = 300,
          .loss = 3.14159,
          .validation_loss = 3.2012,
          .learning_rate = 0.001,
          .tokens_per_second = 12345,
          .eta_seconds = 125,
          .revision = 2,
          .recipe = "nvfp4"};
}

TEST(ProgressTextTest, ABarTellsEverythingWhereThereIsRoom) {
  EXPECT_EQ(RenderBar(Middle(), 100),
            "120/300 [==========>                ] 40%  loss 3.1416  val 3.2012  12.3k tok/s  "
            "eta 2m05s  r2 nvfp4");
}

TEST(ProgressTextTest, RoomThatIsLeftBecomesTheBar) {
  EXPECT_EQ(RenderBar(Middle(), 100).size(), 100u);
  EXPECT_EQ(RenderBar(Middle(), 90).size(), 90u);
  EXPECT_EQ(RenderBar(Middle(), 300).size(), RenderBar(Middle(), 400).size());
}

TEST(ProgressTextTest, ABarIsNeverWiderThanItsColumns) {
  for (int columns = -1; columns <= 200; ++columns) {
    const std::string bar = RenderBar(Middle(), columns);
    EXPECT_LE(static_cast<int>(bar.size()), std::max(columns, 0)) << bar;
    for (const char c : bar) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
  }
}

TEST(ProgressTextTest, WhatMattersLeastGoesFirst) {
  EXPECT_EQ(RenderBar(Middle(), 7), "120/300");
  EXPECT_EQ(RenderBar(Middle(), 3), "120");
  EXPECT_EQ(RenderBar(Middle(), 20), "120/300  loss 3.1416");
  EXPECT_EQ(RenderBar(Middle(), 31), "120/300  loss 3.1416  eta 2m05s");
  EXPECT_THAT(RenderBar(Middle(), 60), Not(HasSubstr("nvfp4")));
  EXPECT_THAT(RenderBar(Middle(), 60), HasSubstr("12.3k tok/s"));
}

TEST(ProgressTextTest, TheBarFillsUp) {
  ProgressState state = {.done = 0, .steps = 4};
  EXPECT_EQ(RenderBar(state, 20), "0/4 [>          ] 0%");
  state.done = 2;
  EXPECT_EQ(RenderBar(state, 20), "2/4 [=====>    ] 50%");
  state.done = 4;
  EXPECT_EQ(RenderBar(state, 20), "4/4 [=========] 100%");
  state = {.done = 0, .steps = 0};
  EXPECT_EQ(RenderBar(state, 20), "0/0 [>          ] 0%");
}

TEST(ProgressTextTest, AlmostDoneIsNotDone) {
  EXPECT_THAT(RenderBar({.done = 999, .steps = 1000}, 40), HasSubstr("99%"));
}

TEST(ProgressTextTest, LossesThatAreNoNumbersAreTold) {
  ProgressState state = Middle();
  state.loss = std::nan("");
  state.skipped = 3;
  EXPECT_THAT(RenderBar(state, 120), HasSubstr("loss nan"));
  EXPECT_THAT(RenderBar(state, 120), HasSubstr("skipped 3"));
  EXPECT_THAT(RenderLine(state), HasSubstr("loss nan"));
}

TEST(ProgressTextTest, NamesCannotMoveTheCursor) {
  ProgressState state = Middle();
  state.recipe = "a\x1b[2J\n";
  EXPECT_THAT(RenderBar(state, 150), HasSubstr("r2 a?[2J?"));
  EXPECT_THAT(RenderLine(state), HasSubstr("r2 a?[2J?"));
}

TEST(ProgressTextTest, ALineTellsEverything) {
  EXPECT_EQ(RenderLine(Middle()),
            "step 120/300 (40%)  loss 3.1416  val 3.2012  lr 0.001  12.3k tok/s  eta 2m05s  "
            "recipe r2 nvfp4");
  EXPECT_EQ(RenderLine({.done = 0, .steps = 10}), "step 0/10 (0%)  lr 0");
}

TEST(TerminalTest, APipeIsNoTerminalAndHasTheUsualColumns) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(IsTerminal(ends[1]));
  EXPECT_EQ(TerminalColumns(ends[1]), 80);
  close(ends[0]);
  close(ends[1]);
}

TEST(TerminalTest, ATerminalKnowsItsColumns) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  if (terminal < 0) GTEST_SKIP() << "no pseudo-terminals here";
  ASSERT_EQ(grantpt(terminal), 0);
  ASSERT_EQ(unlockpt(terminal), 0);
  const int end = open(ptsname(terminal), O_RDWR | O_NOCTTY);
  ASSERT_GE(end, 0);
  EXPECT_TRUE(IsTerminal(end));
  EXPECT_EQ(TerminalColumns(end), 80);  // the terminal's size is not set yet
  const struct winsize size = {.ws_row = 24, .ws_col = 132, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(end, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(TerminalColumns(end), 132);
  close(end);
  close(terminal);
}

using ::testing::ElementsAre;
using ::testing::EndsWith;
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
  // A step of 1000 tokens has ended.
  static void Done(Progress& progress, int64_t step, bool updated = true) {
    v1::StepSample sample;
    sample.set_step(step);
    sample.set_loss(5.0 - 0.1 * static_cast<double>(step));
    sample.set_learning_rate(0.01);
    sample.set_revision(1);
    sample.set_updated(updated);
    progress.StepDone(sample, 1000, "nvfp4");
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
    Done(progress, step);
  }
  EXPECT_EQ(out_.str(),
            "step 1/3 (33%)  loss 5.0000  lr 0.01  500 tok/s  eta 4s  recipe r1 nvfp4\n"
            "step 2/3 (66%)  loss 4.9000  lr 0.01  500 tok/s  eta 2s  recipe r1 nvfp4\n"
            "step 3/3 (100%)  loss 4.8000  lr 0.01  500 tok/s  eta 0s  recipe r1 nvfp4\n");
}

TEST_F(ProgressTest, LinesHaveALeastNumberOfStepsBetweenThem) {
  Progress progress(Plain(10, 0), out_);
  progress.Start(0, 25);
  for (int64_t step = 0; step < 25; ++step) Done(progress, step);
  EXPECT_THAT(Lines(), ElementsAre(StartsWith("step 1/25 "), StartsWith("step 11/25 "),
                                   StartsWith("step 21/25 "), StartsWith("step 25/25 ")));
}

TEST_F(ProgressTest, LinesHaveALeastTimeBetweenThem) {
  Progress progress(Plain(1, 5), out_);
  progress.Start(0, 100);
  for (int64_t step = 0; step < 12; ++step) {
    now_ += 1;
    Done(progress, step);
  }
  EXPECT_THAT(Lines(), ElementsAre(StartsWith("step 1/100 "), StartsWith("step 6/100 "),
                                   StartsWith("step 11/100 ")));
}

TEST_F(ProgressTest, ARunThatResumesCountsFromItsFirstStep) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(90, 100);
  now_ += 1;
  Done(progress, 90);
  EXPECT_THAT(out_.str(), StartsWith("step 91/100 (91%)"));
  EXPECT_THAT(out_.str(), HasSubstr("1.00k tok/s  eta 9s"));
}

TEST_F(ProgressTest, ATerminalIsDrawnInPlace) {
  {
    Progress progress(Terminal(80), out_);
    progress.Start(0, 100);
    for (int64_t step = 0; step < 3; ++step) {
      now_ += 1;
      Done(progress, step);
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
    Done(progress, step);
  }
  const std::vector<std::string> drawings = absl::StrSplit(out_.str(), '\r', absl::SkipEmpty());
  EXPECT_THAT(drawings, SizeIs(7));  // the first, then one each of the 6 seconds
}

TEST_F(ProgressTest, NotesAreWrittenAboveTheBar) {
  Progress progress(Terminal(80), out_);
  progress.Start(0, 100);
  progress.Note("before the bar");
  EXPECT_EQ(out_.str(), "before the bar\n");
  Done(progress, 0);
  out_.str("");
  progress.Note("revision 2 is active");
  EXPECT_THAT(out_.str(), StartsWith("\r\x1b[Krevision 2 is active\n\r1/100 ["));
}

TEST_F(ProgressTest, ValidationIsShownAndDoesNotSlowTheSteps) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(0, 10);
  now_ += 1;
  Done(progress, 0);
  now_ += 100;
  progress.ValidationDone("wiki", 4.25);
  now_ += 1;
  Done(progress, 1);
  EXPECT_THAT(Lines()[1], "step 1  validation wiki 4.2500");
  EXPECT_THAT(Lines()[2], HasSubstr("val 4.2500"));
  EXPECT_EQ(progress.state().eta_seconds, 8);
}

TEST_F(ProgressTest, SkippedStepsAreCounted) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(0, 10);
  Done(progress, 0, /*updated=*/false);
  Done(progress, 1);
  EXPECT_THAT(Lines()[1], EndsWith("skipped 1"));
}

TEST_F(ProgressTest, AClockThatDoesNotAdvanceGivesNoSpeed) {
  Progress progress(Plain(1, 0), out_);
  progress.Start(0, 10);
  Done(progress, 0);
  EXPECT_THAT(out_.str(), Not(HasSubstr("tok/s")));
  EXPECT_THAT(out_.str(), Not(HasSubstr("eta")));
}

}  // namespace
}  // namespace nibble
