#include "plan/rank_memory.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "model/outline_testing.h"
#include "plan/copies.h"
#include "plan/units.h"
#include "recipe/recipe.h"

namespace nibble {
namespace {

struct Planned {
  Outline outline;
  ResolvedRecipe recipe;
};

Planned PlannedModel(const ModelSpec& spec, const std::string& preset) {
  Planned planned = {.outline = MakeOutline(spec).value()};
  planned.recipe = Resolve({.preset = preset}, planned.outline, 0).value();
  return planned;
}
Planned PlannedModel(const std::string& model, const std::string& preset) {
  return PlannedModel(ModelPreset(model).value(), preset);
}

RankMemory MemoryOf(const Planned& planned, const MemoryRequest& request) {
  return PlanRankMemory(planned.outline, planned.recipe, request).value();
}

MemoryRequest EightCards(Sharding sharding) {
  return {.sharding = sharding, .cards_per_node = 8, .batch = {.sequences = 1, .length = 8192}};
}

TEST(UnitsTest, UnitsShareOutParametersAndOperations) {
  for (const char* name : {"nemotron-h-8b", "gpt2-125m", "tiny-hybrid", "llama-1b"}) {
    const Planned planned = PlannedModel(name, "nvfp4");
    const std::vector<Unit> units = MakeUnits(planned.outline, planned.recipe, {}, 512).value();
    ASSERT_EQ(units.size(), planned.outline.spec.pattern.size() + 2);
    int64_t parameters = 0, bf16 = 0;
    double flops = 0;
    for (const Unit& unit : units) {
      parameters += unit.parameters;
      bf16 += unit.bf16_bytes - unit.tied_bytes;
      flops += unit.forward_flops;
      EXPECT_LE(unit.packed_bytes, unit.bf16_bytes);
    }
    EXPECT_EQ(parameters, planned.outline.parameters()) << name;
    EXPECT_EQ(bf16, 2 * parameters) << name;
    EXPECT_NEAR(flops / CountFlops(planned.outline, 512).forward(), 1, 1e-12) << name;
  }
}

TEST(UnitsTest, OneBlockOfEachMixerMatchesHandCount) {
  const Planned planned = PlannedModel(HandModel(), "bf16");
  const std::vector<Unit> units = MakeUnits(planned.outline, planned.recipe, {}, 6).value();
  ASSERT_EQ(units.size(), 5);
  EXPECT_EQ(units[0].parameters, 80);
  EXPECT_EQ(units[1].parameters, 332 + 8);  // Mamba and its norm
  EXPECT_EQ(units[2].parameters, 192 + 8);
  EXPECT_EQ(units[3].parameters, 256 + 8);
  EXPECT_EQ(units[4].parameters, 8 + 80);  // the final norm and the head
  EXPECT_DOUBLE_EQ(units[0].forward_flops, 0);
  EXPECT_DOUBLE_EQ(units[3].forward_flops, 2 * 256);
  EXPECT_DOUBLE_EQ(units[4].forward_flops, 2 * 80);
  EXPECT_EQ(LargestUnit(units, [](const Unit& unit) { return unit.parameters; }), 340);
  EXPECT_EQ(LargestPair(units, [](const Unit& unit) { return unit.parameters; }), 540);
}

TEST(UnitsTest, ATiedHeadReadsTheTableAgain) {
  ModelSpec spec = HandModel();
  spec.tied_head = true;
  const Planned planned = PlannedModel(spec, "bf16");
  const Unit head = MakeUnits(planned.outline, planned.recipe, {}, 6).value().back();
  EXPECT_EQ(head.parameters, 8);
  EXPECT_EQ(head.tied_bytes, 2 * 80);
  EXPECT_EQ(head.bf16_bytes, 2 * (8 + 80));
}

// Sizes that are multiples of 256 bytes, so that the layout has no gaps.
TEST(ModelMemoryTest, OneMlpBlockMatchesHandCount) {
  ModelSpec spec = HandModel("-");
  spec.d_model = 128;
  spec.d_ff = 512;
  spec.vocab = 64;
  const Planned planned = PlannedModel(spec, "bf16");
  const BatchShape batch = {.sequences = 2, .length = 128};
  const ModelMemory memory =
      LayOutModel(planned.outline, planned.recipe, {}, batch, int64_t{1} << 30).value();
  const int64_t tokens = 256, stream = 2 * tokens * 128, wide = 2 * tokens * 512;
  EXPECT_EQ(memory.working_weights, 2 * (2 * 128 * 512 + 64 * 128));
  EXPECT_EQ(memory.activations, 7 * stream + 4 * tokens    // kept
                                    + 4 * tokens + stream  // the norm's figures and output
                                    + wide + wide);        // the activation's in- and output
  EXPECT_EQ(memory.scratch, 2 * wide);  // more than the logits and their gradient, 6 · 256 · 64
}

TEST(ModelMemoryTest, AQuantisedCopyReplacesTheInputOfALinear) {
  ModelSpec spec = HandModel("-");
  spec.d_model = 128;
  spec.d_ff = 512;
  spec.vocab = 64;
  const BatchShape batch = {.sequences = 2, .length = 128};
  const auto activations = [&](const char* preset, int capability) {
    const Planned planned = PlannedModel(spec, preset);
    return LayOutModel(planned.outline, planned.recipe, {.capability = capability}, batch,
                       int64_t{1} << 30)
        .value()
        .activations;
  };
  const int64_t bf16 = activations("bf16", 90);
  EXPECT_EQ(activations("nvfp4-base", 90), bf16);  // emulated in BF16
  const int64_t inputs = 256 * (128 + 512);
  EXPECT_EQ(activations("nvfp4-base", 100), bf16 - inputs * 2 + inputs / 2 + inputs / 16);
}

TEST(ModelMemoryTest, RecomputationSavesTheLargestBlockOnly) {
  const Planned planned = PlannedModel("tiny-hybrid", "nvfp4");
  const auto activations = [&](bool recompute) {
    return LayOutModel(planned.outline, planned.recipe, {},
                       {.sequences = 2, .length = 64, .recompute = recompute}, 1 << 27)
        .value()
        .activations;
  };
  EXPECT_LT(activations(true), activations(false));
}

TEST(RankMemoryTest, OneRankShardsAndExchangesNothing) {
  const Planned planned = PlannedModel("tiny-hybrid", "nvfp4");
  const int64_t parameters = planned.outline.parameters();
  for (const Sharding sharding : kAllShardings) {
    const RankMemory memory =
        MemoryOf(planned, {.sharding = sharding, .batch = {.sequences = 1, .length = 64}});
    EXPECT_EQ(memory.master, 4 * parameters);
    EXPECT_EQ(memory.moments, 8 * parameters);
    EXPECT_EQ(memory.gradients, 4 * parameters);
    EXPECT_EQ(memory.gathered + memory.exchange, 0);
  }
}

TEST(RankMemoryTest, EachLevelMatchesItsDefinition) {
  const Planned planned = PlannedModel("nemotron-h-12b", "nvfp4");
  const int64_t parameters = planned.outline.parameters();
  const int64_t part = CeilDiv(parameters, 8);
  const int64_t table = int64_t{131072} * 5120;  // embedding, and head
  const int64_t mamba = 5120 + int64_t{22656} * 5120 + 12288 * 5 + 3 * 128 + 10240 + 5120 * 10240;
  const int64_t mlp = 5120 + int64_t{2} * 20480 * 5120;

  const RankMemory optimizer = MemoryOf(planned, EightCards(Sharding::kOptimizer));
  EXPECT_EQ(optimizer.master, 4 * part);
  EXPECT_EQ(optimizer.moments, 8 * part);
  EXPECT_EQ(optimizer.gradients, 4 * (parameters + part));
  EXPECT_NEAR(static_cast<double>(optimizer.working_weights), 2.0 * parameters, 1e6);
  EXPECT_EQ(optimizer.gathered, 0);

  const RankMemory gradients = MemoryOf(planned, EightCards(Sharding::kGradients));
  EXPECT_EQ(gradients.gradients, 4 * (part + table + 5120 + mlp));  // the head, the last block
  EXPECT_EQ(gradients.working_weights, optimizer.working_weights);

  const RankMemory weights = MemoryOf(planned, EightCards(Sharding::kWeights));
  EXPECT_EQ(weights.gradients, gradients.gradients);
  EXPECT_LT(weights.working_weights, optimizer.working_weights / 8);
  // The embedding and the first block, or the last block and the head.
  EXPECT_NEAR(static_cast<double>(weights.gathered), 2.0 * (table + std::max(mamba, mlp)), 1e6);
  for (const RankMemory& memory : {optimizer, gradients, weights}) {
    EXPECT_EQ(memory.activations, optimizer.activations);
  }
  EXPECT_LT(gradients.total(), optimizer.total());
  EXPECT_LT(weights.total(), gradients.total());
}

TEST(RankMemoryTest, BetweenNodesSumsOfANodeArriveToo) {
  const Planned planned = PlannedModel("tiny-hybrid", "bf16");
  MemoryRequest request = {.cards_per_node = 2, .batch = {.sequences = 1, .length = 64}};
  const RankMemory node = MemoryOf(planned, request);
  request.nodes = 2;
  const RankMemory nodes = MemoryOf(planned, request);
  EXPECT_EQ(nodes.exchange, node.exchange + CeilDiv(node.exchange, 2));
}

TEST(RankMemoryTest, TheLargestBatchFitsAndOneMoreDoesNot) {
  const Planned planned = PlannedModel("nemotron-h-8b", "nvfp4");
  constexpr int64_t kCard = 141'000'000'000;
  MemoryRequest request = EightCards(Sharding::kWeights);
  const int64_t largest = LargestBatch(planned.outline, planned.recipe, request, kCard).value();
  ASSERT_GT(largest, 0);
  request.batch.sequences = largest;
  EXPECT_LE(MemoryOf(planned, request).total(), kCard);
  ++request.batch.sequences;
  EXPECT_GT(MemoryOf(planned, request).total(), kCard);
  EXPECT_EQ(LargestBatch(planned.outline, planned.recipe, request, 1 << 20).value(), 0);
}

TEST(RankMemoryTest, TheFewestNodesHoldThePlanAndHalfOfThemDoNot) {
  const Planned planned = PlannedModel("nemotron-h-12b", "nvfp4");
  MemoryRequest request = EightCards(Sharding::kWeights);
  request.batch.recompute = true;
  constexpr int64_t kSmallCard = 24'000'000'000;
  const int64_t nodes = FewestNodes(planned.outline, planned.recipe, request, kSmallCard).value();
  ASSERT_GT(nodes, 1);
  request.nodes = nodes;
  EXPECT_LE(MemoryOf(planned, request).total(), kSmallCard);
  request.nodes = nodes / 2;
  EXPECT_GT(MemoryOf(planned, request).total(), kSmallCard);
  EXPECT_EQ(FewestNodes(planned.outline, planned.recipe, request, 1 << 20).value(), 0);
}

TEST(RankMemoryTest, RefusesWhatItCannotCount) {
  const Planned planned = PlannedModel("tiny-hybrid", "bf16");
  const auto refused = [&](const MemoryRequest& request) {
    return std::string(PlanRankMemory(planned.outline, planned.recipe, request).status().message());
  };
  EXPECT_EQ(refused({.nodes = 250000, .cards_per_node = 8, .batch = {.length = 1}}),
            "ranks: 2000000 is not in [1, 1048576]");
  EXPECT_EQ(refused({.batch = {.sequences = 0, .length = 1}}), "batch: 0 is not in [1, 16777216]");
  EXPECT_EQ(refused({.batch = {.sequences = 8192, .length = 8192}}),
            "tokens: 67108864 is not in [1, 16777216]");
  EXPECT_EQ(PlanRankMemory(planned.outline, {}, {.batch = {.length = 1}}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble
