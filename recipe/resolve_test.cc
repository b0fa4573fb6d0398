#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recipe/fields.h"
#include "recipe/operand_roles.h"
#include "recipe/recipe.h"
#include "recipe/selector.h"
#include "recipe/testing.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using enum OperandRole;

ResolvedRecipe Resolved(const Recipe& recipe, const Outline& outline, int64_t tokens = 4096) {
  const absl::StatusOr<ResolvedRecipe> resolved = Resolve(recipe, outline, tokens);
  EXPECT_TRUE(resolved.ok()) << resolved.status();
  return resolved.ok() ? *resolved : ResolvedRecipe{std::vector<LayerRecipe>(1000)};
}

std::string ResolveRefusal(const Recipe& recipe, const Outline& outline, int64_t tokens = 4096) {
  const absl::Status status = Resolve(recipe, outline, tokens).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

std::string Name(const LayerRecipe& layer, OperandRole role) { return OperandName(layer[role]); }

// 60 blocks, so that nvfp4 keeps the first 2 and the last 8; layer 20 is in the middle.
Outline LargeOutline() { return TestOutline(Repeat("*-", 30)); }
constexpr size_t kMiddle = 20;

TEST(Resolve, EachAblationOfThePaperIsOneField) {
  const Outline outline = LargeOutline();
  const LayerRecipe whole = Resolved({.preset = "nvfp4"}, outline).layers[kMiddle];
  const auto ablated = [&](const char* field, const char* value) {
    return Resolved({.preset = "nvfp4", .set = {{field, value}}}, outline).layers[kMiddle];
  };
  LayerRecipe expected = whole;
  expected[kWgradGradient]->hadamard = {};
  expected[kWgradActivation]->hadamard = {};
  EXPECT_EQ(ablated("hadamard", "off"), expected);

  expected = whole;
  expected[kDgradGradient]->rounding = Rounding::kNearest;
  expected[kWgradGradient]->rounding = Rounding::kNearest;
  EXPECT_EQ(ablated("gradients.rounding", "nearest"), expected);

  expected = whole;
  expected[kFpropWeight]->block = {1, 16};
  expected[kDgradWeight]->block = {1, 16};
  EXPECT_EQ(ablated("weights.block", "1x16"), expected);

  expected = whole;
  expected[kWgradGradient]->hadamard.size = 128;
  expected[kWgradActivation]->hadamard.size = 128;
  EXPECT_EQ(ablated("hadamard", "128"), expected);

  expected = whole;
  expected[kWgradGradient]->hadamard.signs = SignChoice::kNone;
  expected[kWgradActivation]->hadamard.signs = SignChoice::kNone;
  EXPECT_EQ(ablated("hadamard.signs", "none"), expected);

  expected = whole;
  expected[kFpropActivation].reset();
  expected[kFpropWeight].reset();
  EXPECT_EQ(ablated("fprop", "bf16"), expected);

  expected = whole;
  for (OperandFormat& operand : expected.operand) operand->formula = FormulaVersion::kTePre2_14;
  EXPECT_EQ(ablated("formula", "te-pre-2.14"), expected);
}

TEST(Resolve, KeepSetsTheBlocksThatStayInBf16) {
  const Outline outline = LargeOutline();
  const auto kept = [&](const Recipe& recipe) {
    std::string pattern;
    for (const LayerRecipe& layer : Resolved(recipe, outline).layers) {
      pattern += layer == LayerRecipe() ? 'b' : 'q';
    }
    return pattern;
  };
  const auto ends = [](int first, int last) {
    return Repeat("b", 2 * first) + Repeat("q", 120 - 2 * (first + last)) + Repeat("b", 2 * last);
  };
  EXPECT_EQ(kept({.preset = "nvfp4"}), ends(2, 8));
  EXPECT_EQ(kept({.preset = "nvfp4", .set = {{"keep", "none"}}}), ends(0, 0));
  EXPECT_EQ(kept({.preset = "nvfp4", .set = {{"keep", "0+4"}}}), ends(0, 4));
  EXPECT_EQ(kept({.preset = "nvfp4", .set = {{"keep", "0+4"}, {"keep", "default"}}}), ends(2, 8));
  EXPECT_EQ(kept({.preset = "bf16", .set = {{"all", "mxfp8"}, {"keep", "1+1"}}}), ends(1, 1));
  EXPECT_EQ(kept({.preset = "nvfp4", .layers = {{"*", {{"keep", "3+3"}}}}}), ends(3, 3));
  // A format set for the whole model also applies to the kept blocks; default keeps them again.
  EXPECT_EQ(kept({.preset = "nvfp4", .set = {{"all", "nvfp4"}}}), ends(0, 0));
  EXPECT_EQ(kept({.preset = "nvfp4", .set = {{"all", "nvfp4"}, {"all", "default"}}}), ends(2, 8));
}

TEST(Resolve, PropertiesDoNotChangeKeptBlocks) {
  const Outline outline = LargeOutline();
  for (const FieldSetting& setting : std::vector<FieldSetting>{
           {"rounding", "stochastic"}, {"weights.block", "1x16"}, {"hadamard", "64"}}) {
    const ResolvedRecipe recipe = Resolved({.preset = "nvfp4", .set = {setting}}, outline);
    EXPECT_EQ(recipe.layers.front(), LayerRecipe());
    EXPECT_EQ(recipe.layers.back(), LayerRecipe());
  }
}

TEST(Resolve, AFormatInPlaceOfBf16UsesThePresetsOptions) {
  const Outline outline = LargeOutline();
  const ResolvedRecipe plain = Resolved({.preset = "nvfp4"}, outline);
  const ResolvedRecipe rule =
      Resolved({.preset = "nvfp4", .layers = {{"last 4 blocks", {{"all", "nvfp4"}}}}}, outline);
  EXPECT_EQ(rule.layers.back(), plain.layers[kMiddle]);

  const LayerRecipe other =
      Resolved({.preset = "nvfp4", .set = {{"all", "mxfp4"}}}, outline).layers[kMiddle];
  for (const OperandRole role : kAllOperandRoles) EXPECT_EQ(Name(other, role), "mxfp4 1x32");

  const LayerRecipe from_bf16 =
      Resolved({.preset = "bf16", .set = {{"all", "nvfp4"}}}, outline).layers[0];
  for (const OperandRole role : kAllOperandRoles) EXPECT_EQ(Name(from_bf16, role), "nvfp4 1x16");
}

TEST(Resolve, APropertySurvivesAChangeOfFormat) {
  const Outline outline = LargeOutline();
  const std::vector<FieldSetting> ablation = {{"gradients.rounding", "nearest"},
                                              {"hadamard", "off"}};
  Recipe there_and_back = {.preset = "nvfp4", .set = ablation};
  there_and_back.set.push_back({"all", "bf16"});
  there_and_back.set.push_back({"all", "default"});
  EXPECT_EQ(Resolved(there_and_back, outline),
            Resolved({.preset = "nvfp4", .set = ablation}, outline));
  // It may also be set before its format.
  EXPECT_EQ(Name(Resolved({.preset = "bf16",
                           .set = {{"gradients.rounding", "stochastic"}, {"wgrad", "nvfp4"}}},
                          outline)
                     .layers[0],
                 kWgradGradient),
            "nvfp4 1x16 stochastic");
}

TEST(Resolve, ATransformIsOnBothOperandsOrNeither) {
  const Outline outline = LargeOutline();
  const auto wgrad = [&](std::vector<FieldSetting> set) {
    const LayerRecipe layer =
        Resolved({.preset = "nvfp4", .set = std::move(set)}, outline).layers[kMiddle];
    return std::vector<std::string>{Name(layer, kWgradGradient), Name(layer, kWgradActivation)};
  };
  EXPECT_THAT(wgrad({{"wgrad.activation", "bf16"}}), ElementsAre("nvfp4 1x16 stochastic", "bf16"));
  EXPECT_THAT(wgrad({{"wgrad.gradient", "bf16"}, {"hadamard", "32"}}),
              ElementsAre("bf16", "nvfp4 1x16"));
  // The preset's transform only applies to its own format.
  EXPECT_THAT(wgrad({{"wgrad.activation", "mxfp8"}}),
              ElementsAre("nvfp4 1x16 stochastic", "mxfp8 1x32"));
  EXPECT_THAT(wgrad({{"wgrad.activation", "mxfp8"}, {"hadamard", "32"}}),
              ElementsAre("nvfp4 1x16 stochastic hadamard32", "mxfp8 1x32 hadamard32"));
  EXPECT_THAT(wgrad({{"hadamard.signs", "seeded:7"}}),
              ElementsAre("nvfp4 1x16 stochastic hadamard16 signs=seeded:7",
                          "nvfp4 1x16 hadamard16 signs=seeded:7"));
  const LayerRecipe fprop =
      Resolved({.preset = "nvfp4", .set = {{"fprop.hadamard", "16"}, {"weights.block", "1x16"}}},
               outline)
          .layers[kMiddle];
  EXPECT_EQ(Name(fprop, kFpropActivation), "nvfp4 1x16 hadamard16");
  EXPECT_EQ(Name(fprop, kFpropWeight), "nvfp4 1x16 hadamard16");
  EXPECT_EQ(Name(fprop, kDgradWeight), "nvfp4 1x16");
}

TEST(Resolve, GradientsInFp8TensorAreE5m2) {
  const Outline outline = TestOutline("-");
  const LayerRecipe layer =
      Resolved({.preset = "bf16", .set = {{"all", "fp8-tensor"}}}, outline).layers[0];
  for (const OperandRole role : kAllOperandRoles) {
    const bool gradient = TensorOf(role) == OperandTensor::kGradient;
    EXPECT_EQ(layer[role]->format, gradient ? Format::kFp8TensorE5m2 : Format::kFp8Tensor);
  }
}

TEST(Resolve, LaterRulesOverrideEarlierOnesFieldByField) {
  const Outline outline = TestOutline("*-*-");
  const ResolvedRecipe recipe = Resolved(
      {.preset = "nvfp4-base",
       .set = {{"dgrad", "bf16"}},
       .layers = {{"mlp", {{"all", "mxfp8"}}},
                  {"last 2 blocks", {{"fprop", "bf16"}, {"wgrad.rounding", "stochastic"}}}}},
      outline);
  EXPECT_EQ(Name(recipe.layers[0], kFpropWeight), "nvfp4 1x16");
  EXPECT_EQ(Name(recipe.layers[0], kDgradWeight), "bf16");
  EXPECT_EQ(Name(recipe.layers[2], kDgradWeight), "mxfp8 1x32");
  EXPECT_EQ(Name(recipe.layers[2], kFpropWeight), "mxfp8 1x32");
  EXPECT_EQ(Name(recipe.layers[4], kFpropWeight), "bf16");
  EXPECT_EQ(Name(recipe.layers[4], kDgradWeight), "bf16");
  EXPECT_EQ(Name(recipe.layers[4], kWgradActivation), "nvfp4 1x16 stochastic");
  EXPECT_EQ(Name(recipe.layers[6], kWgradActivation), "mxfp8 1x32 stochastic");
}

// The last setting of an operand's format or rounding, found by searching backwards.
TEST(Resolve, TheLastSettingOfAFieldWinsInRandomRecipes) {
  const Outline outline = TestOutline("M-*-M-*");
  const std::vector<std::string> matches = {"*",          "first 2 blocks", "last 3 blocks",
                                            "blocks 2-4", "attention",      "mlp.down",
                                            "blocks.1.*", "mamba.out_proj", "mlp in block 1"};
  const std::vector<std::string> scopes = {"all",         "fprop",        "dgrad",
                                           "wgrad",       "weights",      "gradients",
                                           "activations", "fprop.weight", "wgrad.gradient"};
  const std::vector<std::string> formats = {"bf16", "nvfp4", "mxfp4", "mxfp8"};
  std::mt19937 random(7);
  const auto pick = [&random](const std::vector<std::string>& from) {
    return from[random() % from.size()];
  };
  struct Applied {
    std::vector<int64_t> layers;
    FieldSetting setting;
  };
  for (int round = 0; round < 300; ++round) {
    Recipe recipe = {.preset = "nvfp4-base"};
    std::vector<Applied> applied;
    std::vector<int64_t> all(outline.linears.size());
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    const auto setting = [&] {
      const std::string scope = pick(scopes);
      if (random() % 2 == 0) return FieldSetting{scope, pick(formats)};
      return FieldSetting{scope == "all" ? "rounding" : scope + ".rounding",
                          random() % 2 == 0 ? "nearest" : "stochastic"};
    };
    for (unsigned i = random() % 4; i > 0; --i) {
      recipe.set.push_back(setting());
      applied.push_back({all, recipe.set.back()});
    }
    for (unsigned i = random() % 5; i > 0; --i) {
      LayerRule rule = {pick(matches), {setting(), setting()}};
      const std::vector<int64_t> layers = *Selector::Parse(rule.match)->Select(outline);
      for (const FieldSetting& field : rule.set) applied.push_back({layers, field});
      recipe.layers.push_back(std::move(rule));
    }
    const ResolvedRecipe resolved = Resolved(recipe, outline);
    for (const int64_t layer : all) {
      for (const OperandRole role : kAllOperandRoles) {
        std::string format = "nvfp4", rounding = "nearest";
        for (const FieldKind kind : {FieldKind::kFormat, FieldKind::kRounding}) {
          for (auto it = applied.rbegin(); it != applied.rend(); ++it) {
            const FieldInfo& field = *FindField(it->setting.field);
            if (field.kind != kind || !field.roles.Has(role) ||
                std::find(it->layers.begin(), it->layers.end(), layer) == it->layers.end()) {
              continue;
            }
            (kind == FieldKind::kFormat ? format : rounding) = it->setting.value;
            break;
          }
        }
        const OperandFormat& operand = resolved.layers[layer][role];
        ASSERT_EQ(operand ? std::string(Info(operand->format).name) : "bf16", format);
        if (operand) {
          ASSERT_EQ(operand->rounding == Rounding::kStochastic, rounding == "stochastic");
        }
      }
    }
  }
}

TEST(Resolve, ARefusedRecipeNamesPresetFieldOrSelector) {
  const Outline outline = TestOutline("*-");
  EXPECT_THAT(ResolveRefusal({.preset = "nvfp5"}, outline),
              AllOf(HasSubstr("'nvfp5'"), HasSubstr("nearest: 'nvfp4'")));
  EXPECT_THAT(ResolveRefusal({.set = {{"fprp", "bf16"}}}, outline), HasSubstr("nearest: 'fprop'"));
  EXPECT_THAT(ResolveRefusal({.layers = {{"mlp", {{"fprop", "nvfp"}}}}}, outline),
              HasSubstr("'nvfp'"));
  EXPECT_THAT(ResolveRefusal({.layers = {{"mamba", {{"fprop", "bf16"}}}}}, outline),
              HasSubstr("selector 'mamba' matches no linear layer"));
  EXPECT_THAT(ResolveRefusal({.layers = {{"mlp", {{"keep", "1+1"}}}}}, outline), HasSubstr("keep"));
  EXPECT_THAT(ResolveRefusal({.set = {{"keep", "1+2"}}}, outline),
              AllOf(HasSubstr("keep: 1+2"), HasSubstr("2 blocks")));
  EXPECT_THAT(ResolveRefusal({}, outline, -1), HasSubstr("tokens: -1"));
}

TEST(Resolve, ABlockShapeTheFormatLacksIsRefusedByLayerAndOperand) {
  EXPECT_THAT(ResolveRefusal({.preset = "nvfp4-base",
                              .set = {{"weights.block", "16x16"}},
                              .layers = {{"mlp.down", {{"dgrad", "mxfp8"}}}}},
                             TestOutline("*-")),
              AllOf(HasSubstr("'blocks.1.mlp.down', dgrad.weight"), HasSubstr("block: 16x16"),
                    HasSubstr("mxfp8"), HasSubstr("1x32")));
  EXPECT_THAT(
      ResolveRefusal({.preset = "nvfp4", .set = {{"keep", "none"}, {"fprop.hadamard", "16"}}},
                     TestOutline("*-")),
      AllOf(HasSubstr("fprop.weight"), HasSubstr("hadamard: size 16"), HasSubstr("16x16")));
}

TEST(Resolve, DimensionsThatBlocksDoNotDivideAreRefusedByName) {
  struct Case {
    Recipe recipe;
    TestSizes sizes;
    int64_t tokens;
    const char* message;
  };
  const Recipe fprop = {.set = {{"fprop", "nvfp4"}}}, dgrad = {.set = {{"dgrad", "nvfp4"}}},
               wgrad = {.set = {{"wgrad", "nvfp4"}}};
  const Case cases[] = {
      {fprop,
       {.d_model = 264},
       64,
       "'blocks.0.mlp.up', fprop.activation: in = 264 is not a multiple of the block 16 of nvfp4"},
      {{.set = {{"fprop.weight", "nvfp4"}, {"weights.block", "16x16"}}},
       {.d_ff = 520},
       64,
       "'blocks.0.mlp.up', fprop.weight: out = 520"},
      {dgrad, {.d_ff = 520}, 64, "'blocks.0.mlp.up', dgrad.gradient: out = 520"},
      {wgrad, {}, 40, "'blocks.0.mlp.up', wgrad.gradient: tokens = 40"},
      {{.set = {{"wgrad", "nvfp4"}, {"hadamard", "64"}}},
       {},
       96,
       "wgrad.gradient: tokens = 96 is not a multiple of the Hadamard size 64"},
      {{.set = {{"wgrad", "fp8-tensor"}, {"rounding", "stochastic"}}},
       {},
       40,
       "tokens = 40 is not a multiple of the group of random bits 16"},
      {{.set = {{"wgrad", "fp4-token-channel"}}},
       {},
       33,
       "tokens = 33 is not a multiple of the packing of two per byte 2"},
      {{.set = {{"fprop.activation", "fp8-block"}, {"activations.block", "128x128"}}},
       {},
       64,
       "fprop.activation: tokens = 64 is not a multiple of the block 128"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(ResolveRefusal(c.recipe, TestOutline("-", c.sizes), c.tokens),
                HasSubstr(c.message));
  }
}

TEST(Resolve, UnknownTokensAreNotChecked) {
  Resolved({.preset = "mxfp4", .set = {{"hadamard", "128"}}}, TestOutline("*-"), 0);
}

TEST(Resolve, EveryLayerOfTheModelHasARow) {
  for (const std::string pattern : {"", "M", "*-M-"}) {
    const Outline outline = TestOutline(pattern);
    EXPECT_EQ(Resolve({.preset = "nvfp4"}, outline, 4096)->layers.size(), outline.linears.size());
  }
}

}  // namespace
}  // namespace nibble
