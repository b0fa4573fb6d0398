#include "recipe/selector.h"

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "recipe/testing.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;

TEST(LayerNames, DifferentSpecsHaveDifferentNames) {
  std::vector<OperandFormat> operands = {std::nullopt};
  for (const FormatInfo& info : AllFormats()) {
    for (const BlockShape& block : info.shapes) {
      OperandSpec spec = OperandSpec::Of(info.format);
      spec.block = block;
      operands.push_back(spec);
    }
  }
  OperandSpec plain = OperandSpec::Of(Format::kNvfp4);
  operands.insert(operands.end(), 6, plain);
  const size_t at = operands.size() - 6;
  operands[at]->rounding = Rounding::kStochastic;
  operands[at + 1]->formula = FormulaVersion::kTePre2_14;
  for (size_t i = 2; i < 6; ++i) operands[at + i]->hadamard.size = 16;
  operands[at + 3]->hadamard.signs = SignChoice::kNone;
  operands[at + 4]->hadamard.signs = SignChoice::kSeeded;
  operands[at + 4]->hadamard.seed = 7;
  operands[at + 5]->hadamard.signs = SignChoice::kGiven;
  operands[at + 5]->hadamard.mask = {0xd7e8, 0, 0, 0};
  std::set<std::string> names;
  for (const OperandFormat& operand : operands) {
    EXPECT_TRUE(names.insert(OperandName(operand)).second) << OperandName(operand);
  }
  EXPECT_EQ(OperandName(operands[at + 4]), "nvfp4 1x16 hadamard16 signs=seeded:7");
  EXPECT_EQ(OperandName(operands[at + 5]),
            "nvfp4 1x16 hadamard16 signs=0x0000000000000000000000000000d7e8");
}

TEST(LayerNames, NeighboursAreWrittenAsRanges) {
  EXPECT_EQ(BlockRanges({3}, {1, 3, 5}), "block 3");
  EXPECT_EQ(BlockRanges({1, 3, 5}, {1, 3, 5}), "blocks 1-5");
  EXPECT_EQ(BlockRanges({1, 5}, {1, 3, 5}), "blocks 1, 5");
  EXPECT_EQ(BlockRanges({0, 1, 4, 6, 7, 8}, {0, 1, 2, 3, 4, 5, 6, 7, 8}), "blocks 0-1, 4, 6-8");
}

TEST(LayerNames, BlocksAreFoundByKind) {
  const Outline outline = TestOutline("M-M*-");
  EXPECT_THAT(BlocksWith(outline, "mlp.up"), ElementsAre(1, 4));
  EXPECT_THAT(BlocksWith(outline, ""), ElementsAre(0, 1, 2, 3, 4));
}

TEST(LayerNames, SetsOfLayersAreDescribedBriefly) {
  // Layers 2b and 2b + 1 are those of block b.
  const Outline outline = TestOutline("M-M*-");
  EXPECT_EQ(DescribeLayers(outline, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "all 10 layers");
  EXPECT_EQ(DescribeLayers(outline, {0, 1, 2, 3, 8, 9}), "6 layers: blocks 0-1, 4");
  EXPECT_EQ(DescribeLayers(outline, {2}), "1 layer: mlp.up in block 1");
  EXPECT_EQ(DescribeLayers(outline, {2, 8}), "2 layers: mlp.up");
  EXPECT_EQ(DescribeLayers(outline, {2, 6, 8}), "3 layers: mlp.up; attention.qkv");
  EXPECT_EQ(DescribeLayers(outline, {1, 2, 3}),
            "3 layers: mamba.out_proj in block 0; mlp.up in block 1; mlp.down in block 1");
}

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// Blocks 0 to 6; layers 2b and 2b + 1 are those of block b.
Outline Model() { return TestOutline("M-M*-M-"); }

std::vector<std::string> Selected(const std::string& text, const Outline& outline = Model()) {
  const absl::StatusOr<Selector> selector = Selector::Parse(text);
  EXPECT_TRUE(selector.ok()) << selector.status();
  if (!selector.ok()) return {};
  EXPECT_EQ(selector->text(), text);
  const absl::StatusOr<std::vector<int64_t>> layers = selector->Select(outline);
  EXPECT_TRUE(layers.ok()) << layers.status();
  std::vector<std::string> names;
  if (layers.ok()) {
    for (const int64_t layer : *layers) names.push_back(outline.linears[layer].name);
  }
  return names;
}

std::string SelectorRefusal(const std::string& text) {
  const absl::StatusOr<Selector> selector = Selector::Parse(text);
  const absl::Status status =
      selector.ok() ? selector->Select(Model()).status() : selector.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(status.message());
}

TEST(Selector, EndsAreCountedInBlocks) {
  EXPECT_THAT(Selected("first 2 blocks"),
              ElementsAre("blocks.0.mamba.in_proj", "blocks.0.mamba.out_proj", "blocks.1.mlp.up",
                          "blocks.1.mlp.down"));
  EXPECT_THAT(Selected("last 1 block"), ElementsAre("blocks.6.mlp.up", "blocks.6.mlp.down"));
  EXPECT_EQ(Selected("last 7 blocks").size(), 14u);
  EXPECT_EQ(Selected("  last   7  blocks").size(), 14u);
}

TEST(Selector, RangesIncludeBothEnds) {
  EXPECT_THAT(Selected("block 3"), ElementsAre("blocks.3.attention.qkv", "blocks.3.attention.out"));
  EXPECT_EQ(Selected("blocks 3-3"), Selected("block 3"));
  EXPECT_THAT(Selected("blocks 3-4"),
              ElementsAre("blocks.3.attention.qkv", "blocks.3.attention.out", "blocks.4.mlp.up",
                          "blocks.4.mlp.down"));
}

TEST(Selector, KindsAndMixersAreNames) {
  EXPECT_THAT(Selected("attention.qkv"), ElementsAre("blocks.3.attention.qkv"));
  EXPECT_THAT(Selected("mlp.down"),
              ElementsAre("blocks.1.mlp.down", "blocks.4.mlp.down", "blocks.6.mlp.down"));
  EXPECT_THAT(Selected("attention"),
              ElementsAre("blocks.3.attention.qkv", "blocks.3.attention.out"));
  EXPECT_EQ(Selected("mamba"), Selected("mamba.*"));
  EXPECT_EQ(Selected("mamba").size(), 6u);
}

TEST(Selector, GlobsMatchLayerNames) {
  EXPECT_THAT(Selected("blocks.3.*"),
              ElementsAre("blocks.3.attention.qkv", "blocks.3.attention.out"));
  EXPECT_EQ(Selected("blocks.3"), Selected("blocks.3.*"));
  EXPECT_THAT(Selected("blocks.?.attention.q*"), ElementsAre("blocks.3.attention.qkv"));
  EXPECT_THAT(Selected("*up"),
              ElementsAre("blocks.1.mlp.up", "blocks.4.mlp.up", "blocks.6.mlp.up"));
  EXPECT_EQ(Selected("*").size(), 14u);
  EXPECT_EQ(Selected("*.*.*").size(), 14u);
  EXPECT_THAT(Selected("blocks.1.mlp.up"), ElementsAre("blocks.1.mlp.up"));
}

TEST(Selector, ABlocksNumberIsNotAPrefixOfAnother) {
  const Outline large = TestOutline(Repeat("-", 40));
  EXPECT_THAT(Selected("blocks.3", large), ElementsAre("blocks.3.mlp.up", "blocks.3.mlp.down"));
  EXPECT_THAT(Selected("blocks.3.*", large), ElementsAre("blocks.3.mlp.up", "blocks.3.mlp.down"));
}

TEST(Selector, AKindCanBeLimitedToBlocks) {
  EXPECT_THAT(Selected("mlp.down in last 3 blocks"),
              ElementsAre("blocks.4.mlp.down", "blocks.6.mlp.down"));
  EXPECT_THAT(Selected("m* in blocks 0-1"),
              ElementsAre("blocks.0.mamba.in_proj", "blocks.0.mamba.out_proj", "blocks.1.mlp.up",
                          "blocks.1.mlp.down"));
}

TEST(Selector, InvalidSelectorsAreRefusedWithTheAllowedForms) {
  for (const char* text :
       {"", " ", "first blocks", "first -1 blocks", "first two blocks", "last 8", "8 blocks",
        "blocks 5-3", "blocks 3-", "blocks -3", "blocks x", "middle 2 blocks", "mlp in",
        "mlp in the end", "in first 2 blocks", "a/b", "mlp,attention", "first 2 blocks mlp",
        "first 99999999999999999999 blocks"}) {
    EXPECT_THAT(SelectorRefusal(text),
                AllOf(HasSubstr("'" + std::string(text) + "' is not understood"),
                      HasSubstr("first N blocks"), HasSubstr("attention.qkv")));
  }
}

TEST(Selector, ASelectorWithoutLayersIsRefusedWithTheNearestName) {
  EXPECT_THAT(SelectorRefusal("atention.qkv"),
              AllOf(HasSubstr("matches no linear layer of test-model"),
                    HasSubstr("nearest: 'attention.qkv'")));
  EXPECT_THAT(SelectorRefusal("blocks.1.mlp.dwon"), HasSubstr("nearest: 'blocks.1.mlp.down'"));
  EXPECT_THAT(SelectorRefusal("mpl"), HasSubstr("nearest: 'mlp'"));
  EXPECT_THAT(SelectorRefusal("blocks.9.*"),
              AllOf(HasSubstr("no linear layer"), Not(HasSubstr("nearest"))));
  // Known, but not there.
  EXPECT_THAT(SelectorRefusal("attention in first 2 blocks"),
              AllOf(HasSubstr("no linear layer"), Not(HasSubstr("nearest"))));
}

TEST(Selector, BlocksBeyondTheModelAreRefusedWithTheBound) {
  EXPECT_THAT(SelectorRefusal("first 8 blocks"),
              AllOf(HasSubstr("8 blocks of a model of 7"), HasSubstr("1 to 7")));
  EXPECT_THAT(SelectorRefusal("last 0 blocks"), HasSubstr("1 to 7"));
  EXPECT_THAT(SelectorRefusal("blocks 3-7"),
              HasSubstr("block 7 is beyond the model's last block, 6"));
  EXPECT_THAT(SelectorRefusal("block 7"), HasSubstr("beyond"));
}

TEST(Selector, GlobsAgreeWithARecursiveMatcher) {
  struct Oracle {
    static bool Match(std::string_view pattern, std::string_view text) {
      if (pattern.empty()) return text.empty();
      if (pattern[0] == '*') {
        return Match(pattern.substr(1), text) || (!text.empty() && Match(pattern, text.substr(1)));
      }
      return !text.empty() && (pattern[0] == '?' || pattern[0] == text[0]) &&
             Match(pattern.substr(1), text.substr(1));
    }
  };
  // All patterns of up to five of these, each against all layers.
  const Outline outline = Model();
  const std::string pieces[] = {"*", "?", "blocks", ".", "mlp", "1", "u"};
  for (int code = 0; code < 7 * 7 * 7 * 7 * 7; ++code) {
    std::string pattern = "*";
    for (int rest = code; rest > 0; rest /= 7) pattern += pieces[rest % 7];
    const absl::StatusOr<Selector> selector = Selector::Parse(pattern);
    ASSERT_TRUE(selector.ok());
    std::vector<int64_t> expected;
    for (size_t i = 0; i < outline.linears.size(); ++i) {
      if (Oracle::Match(pattern, outline.linears[i].name) ||
          Oracle::Match(pattern, outline.linears[i].kind)) {
        expected.push_back(static_cast<int64_t>(i));
      }
    }
    const absl::StatusOr<std::vector<int64_t>> selected = selector->Select(outline);
    ASSERT_EQ(selected.ok(), !expected.empty()) << pattern;
    if (selected.ok()) {
      ASSERT_EQ(*selected, expected) << pattern;
    }
  }
}

}  // namespace

}  // namespace nibble
