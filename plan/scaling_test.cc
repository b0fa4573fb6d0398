#include "plan/scaling.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;

std::vector<Unit> UnitsOf(const std::string& model, const std::string& preset) {
  const Outline outline = MakeOutline(ModelPreset(model).value()).value();
  const ResolvedRecipe recipe = Resolve({.preset = preset}, outline, 0).value();
  return MakeUnits(outline, recipe, {}, 8192).value();
}

StepRequest EightNodes(Sharding sharding) {
  return {.sharding = sharding,
          .nodes = 8,
          .cards_per_node = 8,
          .batch = {.sequences = 1, .length = 8192}};
}

// One unit of a million parameters, packed in 600,000 bytes.
std::vector<Unit> OneUnit() {
  return {{.parameters = 1'000'000,
           .packed_bytes = 600'000,
           .bf16_bytes = 2'000'000,
           .forward_flops = 2e6,
           .block = true}};
}

TEST(ScalingTest, EveryByteCrossesANodeOnceAndTheFabricByCards) {
  const LinkBytes reduced = ReduceBytes(64, 4, 8);
  EXPECT_DOUBLE_EQ(reduced.node, 64.0 * 7 / 8);
  EXPECT_DOUBLE_EQ(reduced.fabric, 64.0 / 8 * 3 / 4);
  const LinkBytes gathered = GatherBytes(64, 4, 8);
  EXPECT_DOUBLE_EQ(gathered.node, reduced.node);
  EXPECT_DOUBLE_EQ(gathered.fabric, reduced.fabric);
  EXPECT_DOUBLE_EQ(ReduceBytes(64, 4, 1).node, 0);
  EXPECT_DOUBLE_EQ(ReduceBytes(64, 1, 8).fabric, 0);
}

TEST(ScalingTest, ASmallStepMatchesHandCount) {
  StepRequest request = {.nodes = 2,
                         .cards_per_node = 2,
                         .batch = {.sequences = 1, .length = 10},
                         .rates = {.link = 1e6, .fabric = 1e5, .flops = 1e7}};
  // Gather: 150,000 bytes over the fabric, then 300,000 within the node. 2 s forward, 4 s backward.
  // Reduction: 2,000,000 bytes within the node, 1,000,000 over the fabric.
  const StepOnPaper packed = PlanStep(OneUnit(), request);
  EXPECT_DOUBLE_EQ(packed.gathered.fabric, 150'000);
  EXPECT_DOUBLE_EQ(packed.gathered.node, 300'000);
  EXPECT_DOUBLE_EQ(packed.reduced.node, 2'000'000);
  EXPECT_DOUBLE_EQ(packed.reduced.fabric, 1'000'000);
  EXPECT_DOUBLE_EQ(packed.time.compute, 6);
  EXPECT_DOUBLE_EQ(packed.time.step, (1.5 + 0.3) + 6 + (2 + 10));

  request.form = GatherForm::kBf16;
  EXPECT_DOUBLE_EQ(PlanStep(OneUnit(), request).time.step, (5 + 1) + 6 + (2 + 10));
  request.batch.recompute = true;
  EXPECT_DOUBLE_EQ(PlanStep(OneUnit(), request).time.compute, 8);
}

TEST(ScalingTest, OneCardSendsNothing) {
  for (const Sharding sharding : kAllShardings) {
    StepRequest request = EightNodes(sharding);
    request.nodes = request.cards_per_node = 1;
    const StepOnPaper step = PlanStep(UnitsOf("tiny-hybrid", "nvfp4"), request);
    EXPECT_EQ(step.gathered.node + step.gathered.fabric + step.reduced.node + step.reduced.fabric,
              0);
    EXPECT_DOUBLE_EQ(step.time.efficiency(), 1);
  }
}

TEST(ScalingTest, WithInfiniteRatesNothingIsExposed) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  for (const Sharding sharding : kAllShardings) {
    StepRequest request = EightNodes(sharding);
    request.rates.link = request.rates.fabric = kInfinite;
    const StepOnPaper step = PlanStep(UnitsOf("nemotron-h-8b", "nvfp4"), request);
    EXPECT_GT(step.reduced.fabric, 0);
    EXPECT_DOUBLE_EQ(step.time.efficiency(), 1);
  }
}

TEST(ScalingTest, MoreBandwidthIsNeverSlower) {
  const std::vector<Unit> units = UnitsOf("nemotron-h-12b", "nvfp4");
  for (const Sharding sharding : kAllShardings) {
    double before = std::numeric_limits<double>::infinity();
    for (double factor = 0.125; factor < 100; factor *= 1.5) {
      StepRequest request = EightNodes(sharding);
      request.rates.link *= factor;
      request.rates.fabric *= factor;
      const double step = PlanStep(units, request).time.step;
      EXPECT_LE(step, before);
      before = step;
    }
  }
}

TEST(ScalingTest, PackedGathersAreNeverSlowerThanBf16) {
  for (const char* preset : {"bf16", "nvfp4", "nvfp4-base", "mxfp4", "mxfp8", "fp4-zhou"}) {
    const std::vector<Unit> units = UnitsOf("nemotron-h-8b", preset);
    for (const Sharding sharding : kAllShardings) {
      for (const int64_t nodes : NodesUpTo(64)) {
        StepRequest request = EightNodes(sharding);
        request.nodes = nodes;
        const double packed = PlanStep(units, request).time.step;
        request.form = GatherForm::kBf16;
        EXPECT_LE(packed, PlanStep(units, request).time.step) << preset << ", " << nodes;
      }
    }
  }
}

TEST(ScalingTest, EveryLevelReducesEveryMicroBatch) {
  const std::vector<Unit> units = UnitsOf("tiny-hybrid", "nvfp4");
  for (const Sharding sharding : kAllShardings) {
    StepRequest request = EightNodes(sharding);
    const double once = PlanStep(units, request).reduced.fabric;
    request.micro_batches = 3;
    EXPECT_DOUBLE_EQ(PlanStep(units, request).reduced.fabric, 3 * once);
  }
}

TEST(ScalingTest, ATiedTableIsGatheredOnceWhereAllWeightsAre) {
  const std::vector<Unit> units = UnitsOf("gpt2-125m", "bf16");
  StepRequest request = EightNodes(Sharding::kOptimizer);
  const auto parameters =
      static_cast<double>(MakeOutline(ModelPreset("gpt2-125m").value()).value().parameters());
  EXPECT_NEAR(PlanStep(units, request).gathered.node, 2 * parameters * 7 / 8, 1);
}

TEST(ScalingTest, NodesDoubleUpToTheMost) {
  EXPECT_THAT(NodesUpTo(1), ElementsAre(1));
  EXPECT_THAT(NodesUpTo(8), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(NodesUpTo(12), ElementsAre(1, 2, 4, 8, 12));
}

}  // namespace
}  // namespace nibble
