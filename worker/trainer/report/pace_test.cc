#include "worker/trainer/report/pace.h"

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace nibble
