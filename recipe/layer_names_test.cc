#include "recipe/layer_names.h"

#include <set>
#include <string>

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

TEST(LayerNames, SetsOfLayersAreSaidInFewWords) {
  // Layers 2b and 2b + 1 are block b's.
  const Outline outline = TestOutline("M-M*-");
  EXPECT_EQ(DescribeLayers(outline, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), "all 10 layers");
  EXPECT_EQ(DescribeLayers(outline, {0, 1, 2, 3, 8, 9}), "6 layers: blocks 0-1, 4");
  EXPECT_EQ(DescribeLayers(outline, {2}), "1 layer: mlp.up in block 1");
  EXPECT_EQ(DescribeLayers(outline, {2, 8}), "2 layers: mlp.up");
  EXPECT_EQ(DescribeLayers(outline, {2, 6, 8}), "3 layers: mlp.up; attention.qkv");
  EXPECT_EQ(DescribeLayers(outline, {1, 2, 3}),
            "3 layers: mamba.out_proj in block 0; mlp.up in block 1; mlp.down in block 1");
}

}  // namespace
}  // namespace nibble
