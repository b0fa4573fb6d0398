#include "worker/trainer/report/progress_text.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

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

TEST(ProgressTextTest, CountsHaveThreeDigits) {
  EXPECT_EQ(ShortCount(0), "0.00");
  EXPECT_EQ(ShortCount(9.994), "9.99");
  EXPECT_EQ(ShortCount(9.996), "10.0");
  EXPECT_EQ(ShortCount(99.96), "100");
  EXPECT_EQ(ShortCount(999.4), "999");
  EXPECT_EQ(ShortCount(999.6), "1.00k");
  EXPECT_EQ(ShortCount(12345), "12.3k");
  EXPECT_EQ(ShortCount(9.99e6), "9.99M");
  EXPECT_EQ(ShortCount(5e15), "5000T");
}

TEST(ProgressTextTest, DurationsHaveTwoUnits) {
  EXPECT_EQ(ShortDuration(0.4), "0s");
  EXPECT_EQ(ShortDuration(59.4), "59s");
  EXPECT_EQ(ShortDuration(59.6), "1m00s");
  EXPECT_EQ(ShortDuration(125), "2m05s");
  EXPECT_EQ(ShortDuration(3725), "1h02m");
  EXPECT_EQ(ShortDuration(3 * 86400 + 4 * 3600), "3d04h");
  EXPECT_EQ(ShortDuration(1e300), "999d00h");
  EXPECT_EQ(ShortDuration(-5), "0s");
}

}  // namespace
}  // namespace nibble
