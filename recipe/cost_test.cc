#include "recipe/cost.h"

#include <string>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recipe/testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSequence = 2048;

// Formats a ratio as the paper prints it.
std::string Percent(const Recipe& recipe, const Outline& outline) {
  const absl::StatusOr<ResolvedRecipe> resolved = Resolve(recipe, outline, 0);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  const absl::StatusOr<GemmCost> cost = CostOf(*resolved, outline, kSequence);
  EXPECT_TRUE(cost.ok()) << cost.status();
  return absl::StrFormat("%.1f", 100 * cost->total());
}

// Linear layers with the given formats of Fprop and Wgrad; Dgrad in bf16.
Recipe Zhou(const char* attention_fprop, const char* attention_wgrad, const char* mlp_fprop,
            const char* mlp_wgrad) {
  return {.layers = {{"attention", {{"fprop", attention_fprop}, {"wgrad", attention_wgrad}}},
                     {"mlp", {{"fprop", mlp_fprop}, {"wgrad", mlp_wgrad}}}}};
}

constexpr const char* kFp4 = "fp4-block128";
constexpr const char* kFp8 = "fp8-tensor";

TEST(Cost, ReproducesTable2OfZhouEtAl) {
  const Outline llama = Llama125m();
  EXPECT_EQ(Percent(Zhou(kFp4, kFp4, kFp4, kFp4), llama), "57.1");
  EXPECT_EQ(Percent(Zhou(kFp4, kFp8, kFp8, kFp8), llama), "69.6");
  EXPECT_EQ(Percent(Zhou(kFp8, kFp8, kFp4, kFp4), llama), "60.7");
  EXPECT_EQ(Percent(Zhou(kFp8, kFp8, kFp4, kFp8), llama), "66.1");
  EXPECT_EQ(Percent({.preset = "bf16"}, llama), "100.0");
}

TEST(Cost, ThePresetIsTheLastRowOfTable2) {
  EXPECT_EQ(Percent({.preset = "fp4-zhou"}, Llama125m()), "66.1");
  EXPECT_EQ(Percent({.preset = "fp4-zhou-token"}, Llama125m()), "66.1");
}

TEST(Cost, TheModelPresetCountsAsTheHandWrittenOne) {
  const absl::StatusOr<ModelSpec> spec = ModelPreset("llama-125m");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const absl::StatusOr<Outline> outline = MakeOutline(*spec);
  ASSERT_TRUE(outline.ok()) << outline.status();
  EXPECT_EQ(Percent({.preset = "fp4-zhou"}, *outline), "66.1");
  EXPECT_EQ(Percent(Zhou(kFp4, kFp4, kFp4, kFp4), *outline), "57.1");
}

// Table 3 counts two matrices per MLP, and one tenth of the steps in 16 bit at the end.
TEST(Cost, ReproducesTheTwoStagesOfTable3) {
  const Outline llama = Llama125m(Activation::kGelu);
  EXPECT_EQ(Percent({.preset = "fp4-zhou"}, llama), "68.2");
  Timeline timeline(Recipe{.preset = "fp4-zhou"});
  ASSERT_TRUE(timeline.Append(1, {.set = {{"all", "bf16"}}}, 900, 0, "", 0, "").ok());
  const absl::StatusOr<GemmCost> cost = CostOf(timeline, llama, kSequence, 1000);
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_EQ(absl::StrFormat("%.1f", 100 * cost->total()), "71.4");
  // One horizon ends before the switch, the other includes it.
  EXPECT_NEAR(CostOf(timeline, llama, kSequence, 900)->total(), 0.6818, 1e-4);
  EXPECT_NEAR(CostOf(timeline, llama, kSequence, 1)->total(), 0.6818, 1e-4);
}

TEST(Cost, SharesAddUpAndOnlyLinearLayersGetCheaper) {
  const Outline model = TestOutline("M-*-");
  const GemmCost whole = *CostOf(*Resolve({}, model, 0), model, 512);
  EXPECT_NEAR(whole.total(), 1.0, 1e-12);
  EXPECT_EQ(whole.fprop, whole.dgrad);
  EXPECT_EQ(whole.fprop, whole.wgrad);
  const GemmCost fp4 = *CostOf(*Resolve({.preset = "nvfp4-base"}, model, 0), model, 512);
  EXPECT_DOUBLE_EQ(fp4.fprop, whole.fprop / 4);
  EXPECT_DOUBLE_EQ(fp4.dgrad, whole.dgrad / 4);
  EXPECT_EQ(fp4.attention, whole.attention);
  const GemmCost fp8 = *CostOf(*Resolve({.preset = "mxfp8"}, model, 0), model, 512);
  EXPECT_DOUBLE_EQ(fp8.wgrad, whole.wgrad / 2);
}

TEST(Cost, AGemmTakesTheTimeOfItsSlowerOperand) {
  const Outline model = TestOutline("-");
  const auto fprop = [&](const char* activation, const char* weight) {
    return CostOf(*Resolve({.set = {{"fprop.activation", activation}, {"fprop.weight", weight}}},
                           model, 0),
                  model, 512)
        ->fprop;
  };
  EXPECT_DOUBLE_EQ(fprop("nvfp4", "nvfp4"), 1.0 / 12);
  EXPECT_DOUBLE_EQ(fprop("nvfp4", "mxfp8"), 1.0 / 6);
  EXPECT_DOUBLE_EQ(fprop("bf16", "nvfp4"), 1.0 / 3);
}

TEST(Cost, InvalidArgumentsAreRefusedByName) {
  const Outline model = TestOutline("-");
  const ResolvedRecipe recipe = *Resolve({}, model, 0);
  const auto message = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(CostOf(recipe, model, 0).status()), HasSubstr("sequence: 0"));
  EXPECT_THAT(message(CostOf(recipe, TestOutline("--"), 8).status()), HasSubstr("2 layers"));
  EXPECT_THAT(message(CostOf(ResolvedRecipe(), TestOutline(""), 8).status()),
              HasSubstr("no linear layer"));
  EXPECT_THAT(message(CostOf(Timeline(Recipe{}), model, 8, 0).status()), HasSubstr("steps: 0"));
  EXPECT_THAT(message(CostOf(Timeline(Recipe{.preset = "nvfp"}), model, 8, 5).status()),
              HasSubstr("'nvfp'"));
}

}  // namespace
}  // namespace nibble
