#include "recipe/render.h"

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

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
  // Each of the four kinds: kept, quantised, kept.
  ASSERT_EQ(lines.size(), 1 + 12u);
  EXPECT_THAT(lines[1], HasSubstr("attention.qkv block 0 "));
  EXPECT_THAT(lines[5], HasSubstr("attention.qkv blocks 2-50   25 "));
  EXPECT_THAT(lines[8], HasSubstr("mlp.down blocks 3-51 "));
  EXPECT_THAT(lines[8], HasSubstr("nvfp4 1x16 stochastic hadamard16"));
  EXPECT_THAT(lines[12], HasSubstr("mlp.down blocks 53-59 "));
  EXPECT_THAT(lines[12], HasSubstr("  4       bf16"));
}

TEST(Render, EqualLayersThatAreNoNeighboursAreRowsOfTheirOwn) {
  const Outline outline = TestOutline("---");
  const ResolvedRecipe recipe =
      *Resolve({.preset = "nvfp4-base", .layers = {{"block 1", {{"all", "bf16"}}}}}, outline, 0);
  const std::vector<std::string> lines =
      Lines(RenderTable(recipe, outline, Grouping::kEqual).value());
  EXPECT_EQ(lines.size(), 1 + 6u);
}

TEST(Render, JsonSaysEverythingOfEveryOperand) {
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

}  // namespace
}  // namespace nibble
