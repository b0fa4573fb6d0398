#include "recipe/render.h"

#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recipe/operand_roles.h"
#include "recipe/testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Render, TheTableHasARowPerLayerWithAlignedColumns) {
  const Outline outline = TestOutline("*-");
  const ResolvedRecipe recipe =
      *Resolve({.preset = "nvfp4-base", .set = {{"dgrad", "bf16"}}}, outline, 0);
  const std::vector<std::string> lines =
      Lines(RenderTable(recipe, outline, Grouping::kNone).value());
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0],
            "layer                   layers  fprop.activation  fprop.weight  dgrad.gradient  "
            "dgrad.weight  wgrad.gradient  wgrad.activation");
  EXPECT_EQ(lines[4],
            "blocks.1.mlp.down       1       nvfp4 1x16        nvfp4 1x16    bf16            "
            "bf16          nvfp4 1x16      nvfp4 1x16");
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    EXPECT_EQ(lines[i + 1].rfind(outline.linears[i].name, 0), 0u);
  }
}

TEST(Render, EqualNeighboursOfAKindAreOneRow) {
  const Outline outline = TestOutline(Repeat("*-", 30));
  const ResolvedRecipe recipe = *Resolve({.preset = "nvfp4"}, outline, 0);
  const std::vector<std::string> lines =
      Lines(RenderTable(recipe, outline, Grouping::kEqual).value());
  // Three rows for each of the four kinds: kept, quantised, kept.
  ASSERT_EQ(lines.size(), 1 + 12u);
  EXPECT_THAT(lines[1], HasSubstr("attention.qkv block 0 "));
  EXPECT_THAT(lines[5], HasSubstr("attention.qkv blocks 2-50   25 "));
  EXPECT_THAT(lines[8], HasSubstr("mlp.down blocks 3-51 "));
  EXPECT_THAT(lines[8], HasSubstr("nvfp4 1x16 stochastic hadamard16"));
  EXPECT_THAT(lines[12], HasSubstr("mlp.down blocks 53-59 "));
  EXPECT_THAT(lines[12], HasSubstr("  4       bf16"));
}

TEST(Render, EqualLayersThatAreNotNeighboursHaveRowsOfTheirOwn) {
  const Outline outline = TestOutline("---");
  const ResolvedRecipe recipe =
      *Resolve({.preset = "nvfp4-base", .layers = {{"block 1", {{"all", "bf16"}}}}}, outline, 0);
  const std::vector<std::string> lines =
      Lines(RenderTable(recipe, outline, Grouping::kEqual).value());
  EXPECT_EQ(lines.size(), 1 + 6u);
}

TEST(Render, JsonContainsEveryPropertyOfEveryOperand) {
  const Outline outline = TestOutline("M-");
  const ResolvedRecipe recipe = *Resolve({.preset = "nvfp4",
                                          .set = {{"keep", "none"}, {"hadamard.signs", "seeded:9"}},
                                          .layers = {{"mlp.up", {{"dgrad.weight", "fp8-block"}}}}},
                                         outline, 0);
  const nlohmann::json tree = nlohmann::json::parse(RenderJson(recipe, outline).value());
  EXPECT_EQ(tree["model"], "test-model");
  ASSERT_EQ(tree["layers"].size(), outline.linears.size());
  const nlohmann::json& up = tree["layers"][2];
  EXPECT_EQ(up["name"], "blocks.1.mlp.up");
  EXPECT_EQ(up["kind"], "mlp.up");
  EXPECT_EQ(up["block"], 1);
  EXPECT_EQ(up["in"], 256);
  EXPECT_EQ(up["out"], 512);
  ASSERT_EQ(up["operands"].size(), static_cast<size_t>(kOperandRoles));
  EXPECT_EQ(up["operands"]["wgrad.gradient"], (nlohmann::json{{"format", "nvfp4"},
                                                              {"block", "1x16"},
                                                              {"rounding", "stochastic"},
                                                              {"formula", "te-2.14"},
                                                              {"hadamard", 16},
                                                              {"signs", "seeded:9"}}));
  EXPECT_EQ(up["operands"]["dgrad.weight"],
            (nlohmann::json{{"format", "fp8-block"}, {"block", "1x128"}, {"rounding", "nearest"}}));
  const ResolvedRecipe bf16 = *Resolve({}, outline, 0);
  EXPECT_EQ(nlohmann::json::parse(
                RenderJson(bf16, outline).value())["layers"][0]["operands"]["fprop.weight"],
            (nlohmann::json{{"format", "bf16"}}));
}

TEST(Render, ARecipeOfAnotherModelIsRefused) {
  const ResolvedRecipe recipe = *Resolve({}, TestOutline("*-"), 0);
  const Outline other = TestOutline("*-*");
  for (const absl::Status& status :
       {RenderTable(recipe, other, Grouping::kNone).status(), RenderJson(recipe, other).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("resolved for 4 layers, but the model has 6"));
  }
}

using ::testing::HasSubstr;

// 60 blocks: 120 layers, of which nvfp4 keeps the first 2 and the last 8 blocks in bf16.
Outline SixtyBlocks() { return TestOutline(Repeat("*-", 30)); }

std::string Text(const Recipe& before, const Recipe& after, const Outline& outline) {
  const absl::StatusOr<RecipeDiff> diff =
      Diff(*Resolve(before, outline, 0), *Resolve(after, outline, 0), outline);
  EXPECT_TRUE(diff.ok()) << diff.status();
  return DiffText(*diff, outline);
}

std::string SetOver(const std::string& preset, const FieldSetting& setting) {
  return Text({.preset = preset}, {.preset = preset, .set = {setting}}, SixtyBlocks());
}

TEST(Diff, EqualRecipesHaveNone) {
  EXPECT_EQ(Text({.preset = "nvfp4"}, {.preset = "nvfp4", .set = {{"keep", "2+8"}}}, SixtyBlocks()),
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
  EXPECT_EQ(Text({.preset = "nvfp4"}, {.preset = "mxfp4"}, SixtyBlocks()),
            "all: bf16 → mxfp4 in 4 layers: blocks 0-1\n"
            "all: nvfp4 → mxfp4 in 100 layers: blocks 2-51\n");
}

TEST(Diff, AChangedOptionIsShownPerOperandWithTheCompleteSpec) {
  EXPECT_EQ(SetOver("nvfp4", {"gradients.rounding", "nearest"}),
            "dgrad.gradient: nvfp4 1x16 stochastic → nvfp4 1x16 in 100 layers: blocks 2-51\n"
            "wgrad.gradient: nvfp4 1x16 stochastic hadamard16 → nvfp4 1x16 hadamard16 in 100 "
            "layers: blocks 2-51\n");
  EXPECT_THAT(SetOver("nvfp4", {"hadamard.signs", "none"}),
              HasSubstr("wgrad.gradient: nvfp4 1x16 stochastic hadamard16 → nvfp4 1x16 stochastic "
                        "hadamard16 signs=none in 100"));
}

TEST(Diff, AChangeOfOneOperandIsShownForThatOperand) {
  const std::string text = SetOver("nvfp4", {"wgrad.activation", "bf16"});
  EXPECT_THAT(text, HasSubstr("wgrad.activation: nvfp4 1x16 hadamard16 → bf16 in 100 layers"));
  // Its partner loses the transform.
  EXPECT_THAT(text, HasSubstr("wgrad.gradient: nvfp4 1x16 stochastic hadamard16 → nvfp4 1x16 "
                              "stochastic in 100 layers"));
}

TEST(Diff, LayersAreNamedByKindUnlessTheyFormWholeBlocks) {
  EXPECT_EQ(Text({.preset = "nvfp4-base"},
                 {.preset = "nvfp4-base",
                  .layers = {{"mlp.down in last 4 blocks", {{"fprop", "mxfp8"}}}}},
                 TestOutline(Repeat("*-", 6))),
            "fprop: nvfp4 → mxfp8 in 2 layers: mlp.down in blocks 9-11\n");
}

TEST(Diff, EveryDifferingLayerIsInAGroupAndNoOther) {
  const Outline outline = SixtyBlocks();
  for (const char* a : {"bf16", "nvfp4", "mxfp4", "fp8-block", "fp4-zhou"}) {
    for (const char* b : {"bf16", "nvfp4-base", "mxfp8", "fp8-block", "fp4-zhou-token"}) {
      const ResolvedRecipe before = *Resolve({.preset = a}, outline, 0);
      const ResolvedRecipe after = *Resolve({.preset = b}, outline, 0);
      std::vector<bool> covered(outline.linears.size());
      const RecipeDiff diff = *Diff(before, after, outline);
      for (const RecipeChangeGroup& group : diff.groups) {
        EXPECT_NE(group.from, group.to);
        for (const int64_t layer : group.layers) covered[layer] = true;
      }
      for (size_t i = 0; i < covered.size(); ++i) {
        EXPECT_EQ(covered[i], before.layers[i] != after.layers[i]) << a << " " << b << " " << i;
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
