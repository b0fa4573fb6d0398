#include "job/schedule.h"

#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"

namespace nibble {
namespace {

OptimizerSpec Wsd(DecayShape shape) {
  return {.lr = 1.0,
          .final_lr = 0.2,
          .schedule = LrSchedule::kWsd,
          .warmup_steps = 4,
          .decay_fraction = 0.4,
          .decay_shape = shape};
}

TEST(ScheduleTest, WarmUpIsLinearAndItsLastStepHasTheFullRate) {
  const OptimizerSpec optimizer = Wsd(DecayShape::kLinear);
  EXPECT_EQ(LearningRate(optimizer, 20, 0), 0.25);
  EXPECT_EQ(LearningRate(optimizer, 20, 1), 0.5);
  EXPECT_EQ(LearningRate(optimizer, 20, 2), 0.75);
  EXPECT_EQ(LearningRate(optimizer, 20, 3), 1.0);
}

TEST(ScheduleTest, WsdIsStableUntilTheDecayWhichEndsAtTheFinalRate) {
  const OptimizerSpec optimizer = Wsd(DecayShape::kLinear);
  ASSERT_EQ(DecayFirstStep(optimizer, 20), 12);
  for (int64_t step = 3; step < 12; ++step) EXPECT_EQ(LearningRate(optimizer, 20, step), 1.0);
  // 0.2 + 0.8 · (1 − i/8)
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 12), 0.9);
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 15), 0.6);
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 18), 0.3);
  EXPECT_EQ(LearningRate(optimizer, 20, 19), 0.2);
}

TEST(ScheduleTest, MinusSqrtFallsFastFirst) {
  const OptimizerSpec optimizer = Wsd(DecayShape::kMinusSqrt);
  // 0.2 + 0.8 · (1 − √(i/8)); √(2/8) is a half.
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 13), 0.6);
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 12), 0.2 + 0.8 * (1 - std::sqrt(0.125)));
  EXPECT_EQ(LearningRate(optimizer, 20, 19), 0.2);
}

TEST(ScheduleTest, CosineShapeIsHalfwayInTheMiddleOfTheDecay) {
  const OptimizerSpec optimizer = Wsd(DecayShape::kCosine);
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 15), 0.6);
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 13), 0.2 + 0.8 * (1 + std::sqrt(0.5)) / 2);
  EXPECT_EQ(LearningRate(optimizer, 20, 19), 0.2);
}

TEST(ScheduleTest, CosineScheduleDecaysFromTheEndOfTheWarmUp) {
  OptimizerSpec optimizer = Wsd(DecayShape::kLinear);
  optimizer.schedule = LrSchedule::kCosine;
  ASSERT_EQ(DecayFirstStep(optimizer, 20), 4);
  EXPECT_EQ(LearningRate(optimizer, 20, 3), 1.0);
  EXPECT_LT(LearningRate(optimizer, 20, 4), 1.0);
  EXPECT_DOUBLE_EQ(LearningRate(optimizer, 20, 11), 0.6);  // 8 of 16
  EXPECT_EQ(LearningRate(optimizer, 20, 19), 0.2);
}

TEST(ScheduleTest, ConstantNeverDecays) {
  OptimizerSpec optimizer = Wsd(DecayShape::kLinear);
  optimizer.schedule = LrSchedule::kConstant;
  EXPECT_EQ(DecayFirstStep(optimizer, 20), 20);
  EXPECT_EQ(LearningRate(optimizer, 20, 1), 0.5);
  EXPECT_EQ(LearningRate(optimizer, 20, 19), 1.0);
}

TEST(ScheduleTest, WithoutWarmUpTheFirstStepHasTheFullRate) {
  OptimizerSpec optimizer = Wsd(DecayShape::kLinear);
  optimizer.warmup_steps = 0;
  EXPECT_EQ(LearningRate(optimizer, 20, 0), 1.0);
}

TEST(ScheduleTest, NoDecayFractionMeansNoDecay) {
  OptimizerSpec optimizer = Wsd(DecayShape::kLinear);
  optimizer.decay_fraction = 0;
  EXPECT_EQ(DecayFirstStep(optimizer, 20), 20);
  EXPECT_EQ(LearningRate(optimizer, 20, 19), 1.0);
}

TEST(ScheduleTest, TheDecayBeginsAtAWholeStep) {
  OptimizerSpec optimizer;
  optimizer.decay_fraction = 0.2;
  EXPECT_EQ(DecayFirstStep(optimizer, 1658564), 1326851);  // 331712.8 steps of decay
  optimizer.decay_fraction = 0.15;
  EXPECT_EQ(DecayFirstStep(optimizer, 1000), 850);
}

// For every schedule: positive from the first step on, no jump larger than its steepest slope
// allows, never rising after the warm-up, and final_lr at the end if it decays.
TEST(ScheduleTest, EveryScheduleIsPositiveContinuousAndFallsToItsFinalRate) {
  constexpr int64_t kSteps = 1000;
  for (const Choice<LrSchedule>& schedule : ChoicesOf<LrSchedule>()) {
    for (const Choice<DecayShape>& shape : ChoicesOf<DecayShape>()) {
      OptimizerSpec optimizer = {.lr = 4.5e-4,
                                 .final_lr = 4.5e-6,
                                 .schedule = schedule.value,
                                 .warmup_steps = 100,
                                 .decay_fraction = 0.2,
                                 .decay_shape = shape.value};
      double previous = 0;
      for (int64_t step = 0; step < kSteps; ++step) {
        const double lr = LearningRate(optimizer, kSteps, step);
        EXPECT_GT(lr, 0) << schedule.name << " " << step;
        // √p is steepest at the beginning: 1/√200 of the way in the first step.
        EXPECT_LE(std::abs(lr - previous), 0.072 * optimizer.lr) << schedule.name << " " << step;
        if (step >= 100) {
          EXPECT_LE(lr, previous) << schedule.name << " " << step;
        }
        previous = lr;
      }
      EXPECT_EQ(previous, schedule.value == LrSchedule::kConstant ? 4.5e-4 : 4.5e-6);
    }
  }
}

}  // namespace
}  // namespace nibble
