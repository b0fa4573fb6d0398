#include "worker/trainer/optim/operand_guards.h"

#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// An operand of which so many of 100 non-zero values underflow.
OperandFigures Underflowing(int64_t linear, OperandRole role, uint64_t underflow) {
  OperandFigures figures = {.linear = linear, .role = role, .elements = 200};
  figures.head.amax = 1;
  figures.head.stats.nonzero = 100;
  figures.head.stats.underflow = underflow;
  figures.head.stats.clipped = 20;
  return figures;
}

constexpr OperandRole kWeight = OperandRole::kFpropWeight;
constexpr OperandRole kGradient = OperandRole::kWgradGradient;

TEST(OperandGuardsTest, TheLargestBreachComesFirst) {
  const std::vector<OperandFigures> figures = {
      Underflowing(0, kWeight, 30), Underflowing(1, kWeight, 60), Underflowing(1, kGradient, 80),
      Underflowing(2, kGradient, 60)};
  OperandBounds bounds;
  bounds[OperandGuard::kUnderflow] = 0.5;
  EXPECT_THAT(BreachesOf(OperandGuard::kUnderflow, figures, bounds),
              ElementsAre(OperandBreach{1, kGradient, 0.8}, OperandBreach{1, kWeight, 0.6},
                          OperandBreach{2, kGradient, 0.6}));
}

TEST(OperandGuardsTest, AFigureAtItsBoundIsNoBreach) {
  const std::vector<OperandFigures> figures = {Underflowing(0, kWeight, 50)};
  OperandBounds bounds;
  bounds[OperandGuard::kUnderflow] = 0.5;
  bounds[OperandGuard::kClipped] = 0.1;
  EXPECT_THAT(BreachesOf(OperandGuard::kUnderflow, figures, bounds), IsEmpty());
  EXPECT_THAT(BreachesOf(OperandGuard::kClipped, figures, bounds), IsEmpty());
  bounds[OperandGuard::kClipped] = 0.09;
  EXPECT_THAT(BreachesOf(OperandGuard::kClipped, figures, bounds),
              ElementsAre(OperandBreach{0, kWeight, 0.1}));
}

TEST(OperandGuardsTest, WithoutABoundNothingIsABreach) {
  const std::vector<OperandFigures> figures = {Underflowing(0, kWeight, 100)};
  for (const OperandGuard guard : kOperandGuards) {
    EXPECT_THAT(BreachesOf(guard, figures, OperandBounds()), IsEmpty());
  }
}

TEST(OperandGuardsTest, OperandsThatAreNotFiniteAreLeftToTheGuardOfSteps) {
  std::vector<OperandFigures> figures = {Underflowing(0, kWeight, 100)};
  figures[0].head.non_finite = 1;
  figures[0].head.amax = std::numeric_limits<float>::infinity();
  OperandBounds bounds;
  for (double& bound : bounds.above) bound = 0;
  for (const OperandGuard guard : kOperandGuards) {
    EXPECT_THAT(BreachesOf(guard, figures, bounds), IsEmpty());
  }
}

TEST(OperandGuardsTest, LayersPassThroughTheirBits) {
  const std::vector<OperandBreach> breaches = {
      {130, kWeight, 1}, {63, kGradient, 1}, {0, kWeight, 1}, {64, kWeight, 1}, {63, kWeight, 1}};
  const std::vector<uint64_t> bits = LayerBits(breaches, 131);
  EXPECT_EQ(bits.size(), 3u);
  EXPECT_THAT(LayersOf(bits), ElementsAre(0, 63, 64, 130));
  EXPECT_THAT(LayersOf(LayerBits({}, 64)), IsEmpty());
}

}  // namespace
}  // namespace nibble
