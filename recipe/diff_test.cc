#include "recipe/diff.h"

#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recipe/testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

// 60 blocks: 120 layers, of which nvfp4 keeps the first 2 and the last 8 blocks in bf16.
Outline Large() { return TestOutline(Repeat("*-", 30)); }

std::string Text(const Recipe& before, const Recipe& after, const Outline& outline) {
  const absl::StatusOr<RecipeDiff> diff =
      Diff(*Resolve(before, outline, 0), *Resolve(after, outline, 0), outline);
  EXPECT_TRUE(diff.ok()) << diff.status();
  return DiffText(*diff, outline);
}

std::string SetOver(const std::string& preset, const FieldSetting& setting) {
  return Text({.preset = preset}, {.preset = preset, .set = {setting}}, Large());
}

TEST(Diff, EqualRecipesHaveNone) {
  EXPECT_EQ(Text({.preset = "nvfp4"}, {.preset = "nvfp4", .set = {{"keep", "2+8"}}}, Large()),
            "no difference\n");
}

TEST(Diff, AGemmThatChangesFormatIsOneLine) {
  EXPECT_EQ(SetOver("nvfp4", {"fprop", "bf16"}),
            "fprop: nvfp4 → bf16 in 100 layers: blocks 2-51\n");
  EXPECT_EQ(SetOver("bf16", {"wgrad", "fp8-tensor"}),
            "wgrad: bf16 → fp8-tensor in all 120 layers\n");
}

TEST(Diff, AllGemmsTogetherAreOneLine) {
  EXPECT_EQ(SetOver("nvfp4", {"all", "bf16"}), "all: nvfp4 → bf16 in 100 layers: blocks 2-51\n");
  EXPECT_EQ(Text({.preset = "nvfp4"}, {.preset = "mxfp4"}, Large()),
            "all: bf16 → mxfp4 in 4 layers: blocks 0-1\n"
            "all: nvfp4 → mxfp4 in 100 layers: blocks 2-51\n");
}

TEST(Diff, AnOptionIsToldPerOperandWithAllOfIt) {
  EXPECT_EQ(SetOver("nvfp4", {"gradients.rounding", "nearest"}),
            "dgrad.gradient: nvfp4 1x16 stochastic → nvfp4 1x16 in 100 layers: blocks 2-51\n"
            "wgrad.gradient: nvfp4 1x16 stochastic hadamard16 → nvfp4 1x16 hadamard16 in 100 "
            "layers: blocks 2-51\n");
  EXPECT_THAT(SetOver("nvfp4", {"hadamard.signs", "none"}),
              HasSubstr("wgrad.gradient: nvfp4 1x16 stochastic hadamard16 → nvfp4 1x16 stochastic "
                        "hadamard16 signs=none in 100"));
}

TEST(Diff, OneOperandOfAGemmIsToldAlone) {
  const std::string text = SetOver("nvfp4", {"wgrad.activation", "bf16"});
  EXPECT_THAT(text, HasSubstr("wgrad.activation: nvfp4 1x16 hadamard16 → bf16 in 100 layers"));
  // Its partner loses the transform.
  EXPECT_THAT(text, HasSubstr("wgrad.gradient: nvfp4 1x16 stochastic hadamard16 → nvfp4 1x16 "
                              "stochastic in 100 layers"));
}

TEST(Diff, LayersAreNamedByKindWhereTheyAreNoWholeBlocks) {
  EXPECT_EQ(Text({.preset = "nvfp4-base"},
                 {.preset = "nvfp4-base",
                  .layers = {{"mlp.down in last 4 blocks", {{"fprop", "mxfp8"}}}}},
                 TestOutline(Repeat("*-", 6))),
            "fprop: nvfp4 → mxfp8 in 2 layers: mlp.down in blocks 9-11\n");
}

TEST(Diff, EveryDifferingLayerIsInAGroupAndNoOther) {
  const Outline outline = Large();
  for (const char* a : {"bf16", "nvfp4", "mxfp4", "fp8-block", "fp4-zhou"}) {
    for (const char* b : {"bf16", "nvfp4-base", "mxfp8", "fp8-block", "fp4-zhou-token"}) {
      const ResolvedRecipe before = *Resolve({.preset = a}, outline, 0);
      const ResolvedRecipe after = *Resolve({.preset = b}, outline, 0);
      std::vector<bool> told(outline.linears.size());
      const RecipeDiff diff = *Diff(before, after, outline);
      for (const RecipeChangeGroup& group : diff.groups) {
        EXPECT_NE(group.from, group.to);
        for (const int64_t layer : group.layers) told[layer] = true;
      }
      for (size_t i = 0; i < told.size(); ++i) {
        EXPECT_EQ(told[i], before.layers[i] != after.layers[i]) << a << " " << b << " " << i;
      }
    }
  }
}

TEST(Diff, JsonNamesTheLayers) {
  const Outline outline = TestOutline("*-");
  const RecipeDiff diff =
      *Diff(*Resolve({}, outline, 0),
            *Resolve({.layers = {{"mlp", {{"dgrad", "mxfp8"}}}}}, outline, 0), outline);
  EXPECT_EQ(nlohmann::json::parse(DiffJson(diff, outline)),
            (nlohmann::json::array({{{"field", "dgrad"},
                                     {"from", "bf16"},
                                     {"to", "mxfp8"},
                                     {"layers", {"blocks.1.mlp.up", "blocks.1.mlp.down"}}}})));
}

TEST(Diff, RecipesOfAnotherModelAreRefused) {
  const Outline small = TestOutline("-"), large = TestOutline("--");
  const ResolvedRecipe of_small = *Resolve({}, small, 0), of_large = *Resolve({}, large, 0);
  EXPECT_EQ(Diff(of_small, of_large, large).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Diff(of_large, of_small, large).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Diff(of_large, of_large, large).ok());
}

}  // namespace
}  // namespace nibble
