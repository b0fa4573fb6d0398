#include "plan/step_time.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;

std::vector<UnitTimes> EqualUnits(int count, LinkTimes gather, LinkTimes reduce) {
  return std::vector<UnitTimes>(static_cast<size_t>(count),
                                {.forward = 1, .backward = 2, .gather = gather, .reduce = reduce});
}

std::vector<UnitTimes> RandomUnits(std::mt19937_64& random) {
  std::uniform_real_distribution<double> seconds(0, 3);
  std::vector<UnitTimes> units(1 + random() % 9);
  for (UnitTimes& unit : units) {
    unit = {.forward = seconds(random),
            .backward = 2 * seconds(random),
            .gather = {seconds(random), seconds(random)},
            .reduce = {seconds(random), seconds(random)}};
  }
  return units;
}

TEST(StepTimeTest, GathersRunAheadOfTheForwardPassAndReductionsBehindTheBackwardPass) {
  // Gathers until 3, 6; forward 3-4, 6-7; backward 7-9, 9-11; reductions 9-13, 13-17.
  const StepTime time =
      SimulateStep(EqualUnits(2, {.node = 3}, {.node = 4}), Sharding::kOptimizer, 1);
  EXPECT_DOUBLE_EQ(time.compute, 6);
  EXPECT_DOUBLE_EQ(time.step, 17);
  EXPECT_DOUBLE_EQ(time.exposed(), 11);
  EXPECT_DOUBLE_EQ(time.efficiency(), 6.0 / 17);
  EXPECT_THAT(time.gathers, ElementsAre(1, 1));
  EXPECT_EQ(time.reductions, 1);
}

TEST(StepTimeTest, TheTwoLinksWorkAtTheSameTime) {
  // Fabric 0-2, 2-4, links 2-3, 4-5: forward 3-4, 5-6, backward 6-8, 8-10. Reductions: link 8-9,
  // 10-11, fabric 9-14, 14-19.
  const StepTime time = SimulateStep(
      EqualUnits(2, {.node = 1, .fabric = 2}, {.node = 1, .fabric = 5}), Sharding::kGradients, 1);
  EXPECT_DOUBLE_EQ(time.step, 19);
}

TEST(StepTimeTest, EveryMicroBatchIsReducedAtEveryLevel) {
  const std::vector<UnitTimes> units = EqualUnits(2, {}, {.node = 4});
  for (const Sharding sharding : kAllShardings) {
    // Backward passes end at 4, 6, 10, 12: reductions 4-8, 8-12, 12-16, 16-20.
    const StepTime each = SimulateStep(units, sharding, 2);
    EXPECT_DOUBLE_EQ(each.step, 20);
    EXPECT_EQ(each.reductions, 2);
  }
}

TEST(StepTimeTest, GatheredWeightsHaveRoomForTwoUnits) {
  // Gathers 0-3, 3-6; forward 3-4, so that the third runs 6-9; forward 6-7, 9-10; backward 10-12,
  // 12-14; the first unit is gathered again 12-15; backward 15-17.
  const StepTime time = SimulateStep(EqualUnits(3, {.node = 3}, {}), Sharding::kWeights, 1);
  EXPECT_DOUBLE_EQ(time.step, 17);
  EXPECT_DOUBLE_EQ(time.compute, 9);
  EXPECT_THAT(time.gathers, ElementsAre(2, 1, 1));
}

TEST(StepTimeTest, TheNextGatherGoesBeforeTheReduction) {
  // As above without gathers in the way of the forward pass: gathers 0-1, 1-2, then 2-3; forward
  // 1-2, 2-3, 3-4; backward 4-6, 6-8; gather 6-7 before the reduction 7-11 of the unit that ended
  // at 6; backward 8-10; reductions 11-15, 15-19.
  const StepTime time =
      SimulateStep(EqualUnits(3, {.node = 1}, {.node = 4}), Sharding::kWeights, 1);
  EXPECT_DOUBLE_EQ(time.step, 19);
}

TEST(StepTimeTest, WhereThePassesTurnTheLastTwoUnitsAreStillThere) {
  const std::vector<UnitTimes> units = EqualUnits(5, {.node = 1}, {});
  EXPECT_THAT(SimulateStep(units, Sharding::kWeights, 1).gathers, ElementsAre(2, 2, 2, 1, 1));
  EXPECT_THAT(SimulateStep(units, Sharding::kWeights, 2).gathers, ElementsAre(3, 3, 4, 2, 2));
  EXPECT_THAT(SimulateStep(EqualUnits(2, {.node = 1}, {}), Sharding::kWeights, 7).gathers,
              ElementsAre(1, 1));
}

TEST(StepTimeTest, WithoutCommunicationAStepIsItsComputation) {
  for (const Sharding sharding : kAllShardings) {
    const StepTime time = SimulateStep(EqualUnits(4, {}, {}), sharding, 3);
    EXPECT_DOUBLE_EQ(time.step, 36);
    EXPECT_DOUBLE_EQ(time.efficiency(), 1);
  }
}

TEST(StepTimeTest, AStepTakesAtLeastWhatEachPartTakesAndAtMostTheSum) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    const std::vector<UnitTimes> units = RandomUnits(random);
    const Sharding sharding = kAllShardings[random() % 3];
    const StepTime time = SimulateStep(units, sharding, 1 + static_cast<int64_t>(random() % 4));
    double node = 0, fabric = 0;
    for (size_t u = 0; u < units.size(); ++u) {
      const auto gathers = static_cast<double>(time.gathers[u]);
      const auto reductions = static_cast<double>(time.reductions);
      node += gathers * units[u].gather.node + reductions * units[u].reduce.node;
      fabric += gathers * units[u].gather.fabric + reductions * units[u].reduce.fabric;
    }
    EXPECT_GE(time.step, time.compute - 1e-9);
    EXPECT_GE(time.step, node - 1e-9);
    EXPECT_GE(time.step, fabric - 1e-9);
    EXPECT_LE(time.step, time.compute + node + fabric + 1e-9);
  }
}

TEST(StepTimeTest, ShorterMessagesAreNeverSlower) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 300; ++i) {
    const std::vector<UnitTimes> units = RandomUnits(random);
    std::vector<UnitTimes> shorter = units;
    std::uniform_real_distribution<double> share(0, 1);
    for (UnitTimes& unit : shorter) {
      for (double* time :
           {&unit.gather.node, &unit.gather.fabric, &unit.reduce.node, &unit.reduce.fabric}) {
        *time *= share(random);
      }
    }
    for (const Sharding sharding : kAllShardings) {
      EXPECT_LE(SimulateStep(shorter, sharding, 2).step,
                SimulateStep(units, sharding, 2).step + 1e-9);
    }
  }
}

}  // namespace
}  // namespace nibble
