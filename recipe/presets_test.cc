#include "recipe/presets.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recipe/operand_roles.h"
#include "recipe/selector.h"
#include "recipe/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kHybridBlocks = 62;
// As many blocks as the paper's 12B model: six attention blocks among Mamba and MLP ones.
std::string HybridPattern() { return Repeat("M-M-M-M*-", 6) + "M-M-M-M-"; }

ResolvedRecipe ResolvedPreset(const std::string& preset, const Outline& outline) {
  const absl::StatusOr<ResolvedRecipe> resolved = Resolve({.preset = preset}, outline, 4096);
  EXPECT_TRUE(resolved.ok()) << preset << ": " << resolved.status();
  return resolved.ok() ? *resolved : ResolvedRecipe{};
}

std::vector<std::string> Names(const LayerRecipe& layer) {
  std::vector<std::string> names;
  for (const OperandRole role : kAllOperandRoles) names.push_back(OperandName(layer[role]));
  return names;
}

// The blocks in which all layers are bf16.
std::vector<int64_t> Bf16Blocks(const ResolvedRecipe& recipe, const Outline& outline) {
  std::vector<int64_t> blocks;
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    const int64_t block = outline.linears[i].block;
    if (recipe.layers[i] == LayerRecipe() && (blocks.empty() || blocks.back() != block)) {
      blocks.push_back(block);
    }
  }
  return blocks;
}

const LayerRecipe& LayerOf(const ResolvedRecipe& recipe, const Outline& outline,
                           const std::string& name) {
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    if (outline.linears[i].name == name) return recipe.layers[i];
  }
  ADD_FAILURE() << name;
  return recipe.layers[0];
}

TEST(Presets, ThereAreEightWithAOneLineSummary) {
  std::vector<std::string> names;
  for (const Preset& preset : AllPresets()) {
    names.push_back(preset.name);
    EXPECT_FALSE(preset.summary.empty());
    EXPECT_EQ(preset.summary.find('\n'), std::string::npos);
  }
  EXPECT_THAT(names, ElementsAre("bf16", "nvfp4", "nvfp4-base", "mxfp4", "mxfp8", "fp8-block",
                                 "fp4-zhou", "fp4-zhou-token"));
}

TEST(Presets, EveryPresetResolvesForEveryKindOfModel) {
  for (const Preset& preset : AllPresets()) {
    for (const std::string pattern : {"*-", "M-", "-", "M", "*", "M-M*-M-", "M*-M-M-*-"}) {
      ResolvedPreset(preset.name, TestOutline(pattern));
    }
    ResolvedPreset(preset.name, Llama125m());
  }
}

TEST(Presets, AnUnknownNameIsReportedWithTheNearestOne) {
  const absl::Status status = FindPreset("nvpf4").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("'nvpf4'"), HasSubstr("nearest: 'nvfp4'"), HasSubstr("fp8-block")));
}

TEST(Presets, Bf16QuantisesNothing) {
  const Outline outline = TestOutline("M-*-");
  for (const LayerRecipe& layer : ResolvedPreset("bf16", outline).layers) {
    EXPECT_EQ(layer, LayerRecipe());
  }
}

TEST(Presets, Nvfp4MatchesThePaper) {
  const Outline outline = TestOutline(HybridPattern());
  const ResolvedRecipe recipe = ResolvedPreset("nvfp4", outline);
  ASSERT_EQ(outline.spec.blocks(), kHybridBlocks);
  EXPECT_THAT(Bf16Blocks(recipe, outline), ElementsAre(0, 1, 54, 55, 56, 57, 58, 59, 60, 61));
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    if (recipe.layers[i] == LayerRecipe()) continue;
    EXPECT_THAT(Names(recipe.layers[i]),
                ElementsAre("nvfp4 1x16", "nvfp4 16x16", "nvfp4 1x16 stochastic", "nvfp4 16x16",
                            "nvfp4 1x16 stochastic hadamard16", "nvfp4 1x16 hadamard16"));
  }
}

TEST(Presets, Nvfp4BaseUsesNoneOfTheTechniques) {
  const Outline outline = TestOutline(HybridPattern());
  for (const LayerRecipe& layer : ResolvedPreset("nvfp4-base", outline).layers) {
    for (const std::string& name : Names(layer)) EXPECT_EQ(name, "nvfp4 1x16");
  }
}

TEST(Presets, Mxfp4TransformsBy32AndKeepsTheLastEight) {
  const Outline outline = TestOutline(HybridPattern());
  const ResolvedRecipe recipe = ResolvedPreset("mxfp4", outline);
  EXPECT_THAT(Bf16Blocks(recipe, outline), ElementsAre(54, 55, 56, 57, 58, 59, 60, 61));
  EXPECT_THAT(Names(recipe.layers[0]),
              ElementsAre("mxfp4 1x32", "mxfp4 32x32", "mxfp4 1x32 stochastic", "mxfp4 32x32",
                          "mxfp4 1x32 stochastic hadamard32", "mxfp4 1x32 hadamard32"));
}

TEST(Presets, Mxfp8UsesMxfp8Everywhere) {
  const Outline outline = TestOutline(HybridPattern());
  for (const LayerRecipe& layer : ResolvedPreset("mxfp8", outline).layers) {
    for (const std::string& name : Names(layer)) EXPECT_EQ(name, "mxfp8 1x32");
  }
}

TEST(Presets, Fp8BlockHasSquareWeightBlocksAndKeepsThreeBlocks) {
  const Outline outline = TestOutline(HybridPattern());
  const ResolvedRecipe recipe = ResolvedPreset("fp8-block", outline);
  EXPECT_THAT(Bf16Blocks(recipe, outline), ElementsAre(0, 60, 61));
  EXPECT_THAT(Names(recipe.layers[2]),
              ElementsAre("fp8-block 1x128", "fp8-block 128x128", "fp8-block 1x128",
                          "fp8-block 128x128", "fp8-block 1x128", "fp8-block 1x128"));
}

TEST(Presets, ZhouTreatsAttentionAndMambaAlikeAndKeepsDgradInBf16) {
  const Outline outline = TestOutline("M-*-");
  for (const auto& [preset, fp4] : {std::pair{"fp4-zhou", "fp4-block128 1x128"},
                                    std::pair{"fp4-zhou-token", "fp4-token-channel 1xall"}}) {
    const ResolvedRecipe recipe = ResolvedPreset(preset, outline);
    const std::string fp8 = "fp8-tensor allxall", e5m2 = "fp8-tensor-e5m2 allxall";
    for (const char* name : {"blocks.0.mamba.in_proj", "blocks.0.mamba.out_proj",
                             "blocks.2.attention.qkv", "blocks.2.attention.out"}) {
      EXPECT_THAT(Names(LayerOf(recipe, outline, name)),
                  ElementsAre(fp8, fp8, "bf16", "bf16", e5m2, fp8));
    }
    for (const char* name : {"blocks.1.mlp.up", "blocks.1.mlp.down", "blocks.3.mlp.up"}) {
      EXPECT_THAT(Names(LayerOf(recipe, outline, name)),
                  ElementsAre(fp4, fp4, "bf16", "bf16", e5m2, fp8));
    }
  }
}

TEST(Presets, TheModelsOfThePaperKeepItsBlocks) {
  const KeepRule nvfp4 = FindPreset("nvfp4").value()->keep;
  const KeepRule mxfp4 = FindPreset("mxfp4").value()->keep;
  EXPECT_EQ(KeepFor(nvfp4, 62), (KeepBlocks{2, 8}));  // 12B
  EXPECT_EQ(KeepFor(nvfp4, 52), (KeepBlocks{0, 8}));  // 8B
  EXPECT_EQ(KeepFor(nvfp4, 40), (KeepBlocks{0, 4}));  // 1.2B
  EXPECT_EQ(KeepFor(mxfp4, 62), (KeepBlocks{0, 8}));
  EXPECT_EQ(KeepFor(mxfp4, 52), (KeepBlocks{0, 8}));
  EXPECT_EQ(KeepFor(mxfp4, 40), (KeepBlocks{0, 4}));
}

TEST(Presets, SmallModelsKeepAbout15PercentAtTheEnd) {
  const KeepRule nvfp4 = FindPreset("nvfp4").value()->keep;
  const KeepRule mxfp4 = FindPreset("mxfp4").value()->keep;
  EXPECT_EQ(KeepFor(nvfp4, 39), (KeepBlocks{0, 6}));
  EXPECT_EQ(KeepFor(nvfp4, 24), (KeepBlocks{0, 4}));
  EXPECT_EQ(KeepFor(nvfp4, 7), (KeepBlocks{0, 1}));
  EXPECT_EQ(KeepFor(nvfp4, 1), (KeepBlocks{0, 1}));
  EXPECT_EQ(KeepFor(mxfp4, 39), (KeepBlocks{0, 6}));
  EXPECT_EQ(KeepFor(mxfp4, 2), (KeepBlocks{0, 1}));
  for (int64_t blocks = 1; blocks < 40; ++blocks) {
    const KeepBlocks keep = KeepFor(nvfp4, blocks);
    const double share = static_cast<double>(keep.first + keep.last) / static_cast<double>(blocks);
    EXPECT_GE(keep.last, 1);
    EXPECT_EQ(keep.first, 0);
    if (blocks >= 10) {
      EXPECT_NEAR(share, 0.15, 0.051) << blocks;
    }
  }
}

TEST(Presets, NoRuleKeepsMoreBlocksThanTheModelHas) {
  for (const Preset& preset : AllPresets()) {
    for (int64_t blocks = 0; blocks < 80; ++blocks) {
      const KeepBlocks keep = KeepFor(preset.keep, blocks);
      EXPECT_GE(keep.first, 0);
      EXPECT_GE(keep.last, 0);
      EXPECT_LE(keep.first + keep.last, blocks) << preset.name;
    }
  }
}

}  // namespace
}  // namespace nibble
