#include "plan/copies.h"

#include <string>

#include "gtest/gtest.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "plan/sharding.h"
#include "recipe/recipe.h"

namespace nibble {
namespace {

constexpr GemmHardware kHopperCard = {.capability = 90};
constexpr GemmHardware kBlackwellCard = {.capability = 100};

// A linear of 4096 inputs and 6144 outputs under every role of a preset, as in an MLP.
LayerRecipe MlpRecipe(const std::string& preset) {
  const Outline outline = MakeOutline(ModelPreset("transformer-1.2b").value()).value();
  const ResolvedRecipe recipe = Resolve({.preset = preset}, outline, 0).value();
  for (size_t i = outline.linears.size() / 2; i < outline.linears.size(); ++i) {
    if (outline.linears[i].kind == "mlp.up") return recipe.layers[i];
  }
  return {};
}
const LinearInfo kMlpUp = {.name = "up", .kind = "mlp.up", .in = 4096, .out = 6144};
constexpr double kWeights = 4096.0 * 6144;

double BytesPerWeight(const std::string& preset) {
  return static_cast<double>(PackedWeightBytes(MlpRecipe(preset), kMlpUp)) / kWeights;
}
double WorkingPerWeight(const std::string& preset, const GemmHardware& hardware) {
  const LayerRecipe recipe = MlpRecipe(preset);
  return static_cast<double>(WorkingWeightBytes(PlanCopies(recipe, hardware), recipe, kMlpUp)) /
         kWeights;
}

TEST(CopiesTest, NamesOfLevelsAreThoseOfZeroToo) {
  EXPECT_EQ(ParseSharding("zero1").value(), Sharding::kOptimizer);
  EXPECT_EQ(ParseSharding("gradients").value(), Sharding::kGradients);
  EXPECT_EQ(ParseSharding("zero3").value(), Sharding::kWeights);
  for (const Sharding sharding : kAllShardings) {
    EXPECT_EQ(ParseSharding(ShardingName(sharding)).value(), sharding);
  }
  EXPECT_EQ(std::string(ParseSharding("zero4").status().message()),
            "'zero4' is not a level of sharding; allowed: optimizer (zero1), gradients (zero2), "
            "weights (zero3)");
}

TEST(CopiesTest, AFormatTakesItsCodesAndAScalePerBlock) {
  const OperandSpec lines = OperandSpec::Of(Format::kNvfp4);  // 1x16
  EXPECT_EQ(PackedSize(lines, 32, 64).codes, 32 * 64 / 2);
  EXPECT_EQ(PackedSize(lines, 32, 64).scales, 32 * 64 / 16);
  OperandSpec squares = lines;
  squares.block = {16, 16};
  EXPECT_EQ(PackedSize(squares, 32, 64).scales, 32 * 64 / 256);
  EXPECT_EQ(PackedSize(OperandSpec::Of(Format::kMxfp8), 32, 64).total(), 32 * 64 + 32 * 2);
  EXPECT_EQ(PackedSize(OperandSpec::Of(Format::kFp8Tensor), 32, 64).total(), 32 * 64 + 4);
  EXPECT_EQ(PackedSize(OperandSpec::Of(Format::kFp4TokenChannel), 32, 64).scales, 32 * 4);
}

TEST(CopiesTest, AWeightInSquareBlocksTravelsOnceAndOthersInBothDirections) {
  EXPECT_DOUBLE_EQ(BytesPerWeight("bf16"), 2);
  EXPECT_DOUBLE_EQ(BytesPerWeight("nvfp4"), 0.5 + 1.0 / 256);
  EXPECT_DOUBLE_EQ(BytesPerWeight("nvfp4-base"), 2 * 0.5625);
  EXPECT_DOUBLE_EQ(BytesPerWeight("mxfp4"), 0.5 + 1.0 / 1024);
  EXPECT_DOUBLE_EQ(BytesPerWeight("fp8-block"), 1 + 4.0 / 16384);
}

TEST(CopiesTest, AWeightTravelsInBf16IfAProductReadsItOrPackingSavesNothing) {
  EXPECT_DOUBLE_EQ(BytesPerWeight("fp4-zhou"), 2);  // Dgrad is in BF16
  EXPECT_DOUBLE_EQ(BytesPerWeight("mxfp8"), 2);     // twice 1 + 1/32
}

TEST(CopiesTest, WorkingWeightsAreWhatTheCardMultiplies) {
  EXPECT_DOUBLE_EQ(WorkingPerWeight("bf16", kHopperCard), 2);
  EXPECT_DOUBLE_EQ(WorkingPerWeight("nvfp4", kHopperCard), 2);           // emulated, once
  EXPECT_DOUBLE_EQ(WorkingPerWeight("nvfp4-base", kHopperCard), 2 * 2);  // both directions
  EXPECT_DOUBLE_EQ(WorkingPerWeight("fp8-block", kHopperCard), 2 * (1 + 4.0 / 16384));
  EXPECT_DOUBLE_EQ(WorkingPerWeight("nvfp4", kBlackwellCard), 2 * (0.5 + 1.0 / 256));
  EXPECT_DOUBLE_EQ(WorkingPerWeight("fp8-block", kBlackwellCard), 2 + 1 + 4.0 / 16384);
}

TEST(CopiesTest, WithNativeProductsOffEveryCopyIsEmulated) {
  const LinearCopies copies = PlanCopies(MlpRecipe("nvfp4"), {.capability = 100, .native = false});
  for (const OperandRole role : kAllOperandRoles) {
    EXPECT_FALSE(copies[role].packed);
    EXPECT_EQ(copies[role].emulated, role != OperandRole::kDgradWeight);
  }
  EXPECT_FALSE(copies.bf16_weight);
  EXPECT_FALSE(copies.keeps_input);
}

}  // namespace
}  // namespace nibble
