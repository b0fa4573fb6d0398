#include "recipe/operand_spec.h"

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kAll = BlockShape::kWhole;

struct Row {
  Format format;
  const char* name;
  Element element;
  ScaleKind scale;
  bool tensor_scale;
  bool exact_in_bf16;
  std::vector<BlockShape> shapes;
};

// The table of the numeric contract.
std::vector<Row> Table() {
  return {
      {Format::kNvfp4, "nvfp4", Element::kE2M1, ScaleKind::kE4M3, true, true, {{1, 16}, {16, 16}}},
      {Format::kMxfp4, "mxfp4", Element::kE2M1, ScaleKind::kE8M0, false, true, {{1, 32}, {32, 32}}},
      {Format::kMxfp8, "mxfp8", Element::kE4M3, ScaleKind::kE8M0, false, true, {{1, 32}}},
      {Format::kFp8Block,
       "fp8-block",
       Element::kE4M3,
       ScaleKind::kF32,
       false,
       false,
       {{1, 128}, {128, 128}}},
      {Format::kFp8Tensor,
       "fp8-tensor",
       Element::kE4M3,
       ScaleKind::kF32,
       false,
       false,
       {{kAll, kAll}}},
      {Format::kFp8TensorE5m2,
       "fp8-tensor-e5m2",
       Element::kE5M2,
       ScaleKind::kF32,
       false,
       false,
       {{kAll, kAll}}},
      {Format::kFp4Block128,
       "fp4-block128",
       Element::kE2M1,
       ScaleKind::kF32,
       false,
       false,
       {{1, 128}}},
      {Format::kFp4TokenChannel,
       "fp4-token-channel",
       Element::kE2M1,
       ScaleKind::kF32,
       false,
       false,
       {{1, kAll}}},
  };
}

std::string SpecRefusal(const OperandSpec& spec) {
  const absl::Status status = spec.Validate();
  if (status.ok()) return "accepted";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(Format, TheTableMatchesTheNumericContract) {
  ASSERT_EQ(AllFormats().size(), Table().size());
  size_t i = 0;
  for (const Row& row : Table()) {
    const FormatInfo& info = Info(row.format);
    EXPECT_EQ(&info, &AllFormats()[i++]);
    EXPECT_EQ(info.format, row.format);
    EXPECT_EQ(info.name, row.name);
    EXPECT_EQ(info.element, row.element) << row.name;
    EXPECT_EQ(info.scale, row.scale) << row.name;
    EXPECT_EQ(info.tensor_scale, row.tensor_scale) << row.name;
    EXPECT_EQ(info.exact_in_bf16, row.exact_in_bf16) << row.name;
    EXPECT_EQ(std::vector<BlockShape>(info.shapes.begin(), info.shapes.end()), row.shapes)
        << row.name;
  }
}

TEST(Format, NamesParseBackAndUnknownOnesDoNot) {
  for (const Row& row : Table()) EXPECT_EQ(ParseFormat(row.name), row.format);
  for (const char* name : {"", "NVFP4", "nvfp", "nvfp44", " nvfp4", "nvfp4 ", "bf16", "fp8"}) {
    EXPECT_EQ(ParseFormat(name), std::nullopt) << name;
  }
}

TEST(Format, SizesOfElementsAndScales) {
  EXPECT_EQ(ElementBits(Element::kE2M1), 4);
  EXPECT_EQ(ElementBits(Element::kE4M3), 8);
  EXPECT_EQ(ElementBits(Element::kE5M2), 8);
  EXPECT_EQ(ScaleBytes(ScaleKind::kE4M3), 1);
  EXPECT_EQ(ScaleBytes(ScaleKind::kE8M0), 1);
  EXPECT_EQ(ScaleBytes(ScaleKind::kF32), 4);
}

TEST(BlockShape, NamesParseBack) {
  EXPECT_EQ(BlockShapeName({1, 16}), "1x16");
  EXPECT_EQ(BlockShapeName({16, 16}), "16x16");
  EXPECT_EQ(BlockShapeName({1, kAll}), "1xall");
  EXPECT_EQ(BlockShapeName({kAll, kAll}), "allxall");
  for (const Row& row : Table()) {
    for (const BlockShape& shape : row.shapes) {
      EXPECT_EQ(ParseBlockShape(BlockShapeName(shape)), shape);
    }
  }
}

TEST(BlockShape, UnknownShapesAreRefused) {
  for (const char* text :
       {"", "x", "16", "1x", "x16", "0x16", "1x0", "-1x16", "1x-16", "1x16x2", "1x16 ", " 1x16",
        "1X16", "allx", "ALLxall", "1x99999999999", "1.5x16"}) {
    EXPECT_EQ(ParseBlockShape(text), std::nullopt) << text;
  }
}

TEST(OperandSpec, DefaultsOfEveryFormatAreValid) {
  for (const Row& row : Table()) {
    const OperandSpec spec = OperandSpec::Of(row.format);
    EXPECT_EQ(spec.format, row.format);
    EXPECT_EQ(spec.block, row.shapes[0]) << row.name;
    EXPECT_EQ(spec.rounding, Rounding::kNearest);
    EXPECT_EQ(spec.hadamard.size, 0);
    EXPECT_EQ(spec.formula, FormulaVersion::kTe2_14);
    EXPECT_EQ(SpecRefusal(spec), "accepted") << row.name;
  }
}

TEST(OperandSpec, TheNameContainsAllNonDefaultProperties) {
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  EXPECT_EQ(spec.Name(), "nvfp4 1x16 nearest");
  spec.rounding = Rounding::kStochastic;
  EXPECT_EQ(spec.Name(), "nvfp4 1x16 stochastic");
  spec.hadamard.size = 16;
  EXPECT_EQ(spec.Name(), "nvfp4 1x16 stochastic hadamard16");
  spec.formula = FormulaVersion::kTePre2_14;
  EXPECT_EQ(spec.Name(), "nvfp4 1x16 stochastic hadamard16 te-pre-2.14");
  EXPECT_EQ(OperandSpec::Of(Format::kFp8Tensor).Name(), "fp8-tensor allxall nearest");
  EXPECT_EQ(OperandSpec::Of(Format::kFp4TokenChannel).Name(), "fp4-token-channel 1xall nearest");
}

TEST(OperandSpec, EveryBlockOfEveryOtherFormatIsRefusedByName) {
  const std::vector<BlockShape> shapes = {{1, 16},    {16, 16},     {1, 32},   {32, 32}, {1, 128},
                                          {128, 128}, {kAll, kAll}, {1, kAll}, {2, 16}};
  for (const Row& row : Table()) {
    for (const BlockShape& shape : shapes) {
      OperandSpec spec = OperandSpec::Of(row.format);
      spec.block = shape;
      bool allowed = false;
      for (const BlockShape& s : row.shapes) allowed |= s == shape;
      EXPECT_EQ(Allows(Info(row.format), shape), allowed);
      if (allowed) {
        EXPECT_EQ(SpecRefusal(spec), "accepted");
        continue;
      }
      const std::string message = SpecRefusal(spec);
      EXPECT_THAT(message,
                  AllOf(HasSubstr("block"), HasSubstr(BlockShapeName(shape)), HasSubstr(row.name)));
      for (const BlockShape& s : row.shapes) EXPECT_THAT(message, HasSubstr(BlockShapeName(s)));
    }
  }
}

TEST(OperandSpec, HadamardSizesArePowersOfTwoFrom2To128) {
  for (int size = -2; size <= 300; ++size) {
    OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
    spec.hadamard.size = size;
    bool allowed = size == 0;
    for (int power = 2; power <= 128; power *= 2) allowed |= size == power;
    if (allowed) {
      EXPECT_EQ(SpecRefusal(spec), "accepted") << size;
    } else {
      EXPECT_THAT(SpecRefusal(spec),
                  AllOf(HasSubstr("hadamard"), HasSubstr(" " + std::to_string(size) + " "),
                        HasSubstr("power of two"), HasSubstr("128")));
    }
  }
}

TEST(OperandSpec, HadamardWithABlockOfSeveralRowsIsRefused) {
  for (const auto& [format, shape, name] :
       {std::tuple{Format::kNvfp4, BlockShape{16, 16}, "16x16"},
        std::tuple{Format::kMxfp4, BlockShape{32, 32}, "32x32"},
        std::tuple{Format::kFp8Block, BlockShape{128, 128}, "128x128"}}) {
    OperandSpec spec = OperandSpec::Of(format);
    spec.block = shape;
    EXPECT_EQ(SpecRefusal(spec), "accepted");
    spec.hadamard.size = 16;
    EXPECT_THAT(SpecRefusal(spec), AllOf(HasSubstr("hadamard"), HasSubstr("16"), HasSubstr(name)));
  }
}

TEST(OperandSpec, OnlyNvfp4HasFormulaVersions) {
  EXPECT_EQ(FormulaVersionName(FormulaVersion::kTe2_14), "te-2.14");
  EXPECT_EQ(FormulaVersionName(FormulaVersion::kTePre2_14), "te-pre-2.14");
  for (const Row& row : Table()) {
    OperandSpec spec = OperandSpec::Of(row.format);
    spec.formula = FormulaVersion::kTePre2_14;
    if (row.format == Format::kNvfp4) {
      EXPECT_EQ(SpecRefusal(spec), "accepted");
    } else {
      EXPECT_THAT(SpecRefusal(spec), AllOf(HasSubstr("formula"), HasSubstr("te-pre-2.14"),
                                           HasSubstr("nvfp4"), HasSubstr(row.name)));
    }
  }
}

TEST(OperandSpec, EqualityComparesEveryField) {
  const OperandSpec plain = OperandSpec::Of(Format::kNvfp4);
  std::vector<OperandSpec> others(8, plain);
  others[0].format = Format::kMxfp4;
  others[1].block = {16, 16};
  others[2].rounding = Rounding::kStochastic;
  others[3].formula = FormulaVersion::kTePre2_14;
  others[4].hadamard.size = 16;
  others[5].hadamard.signs = SignChoice::kNone;
  others[6].hadamard.seed = 1;
  others[7].hadamard.mask[3] = 1;
  EXPECT_EQ(plain, OperandSpec::Of(Format::kNvfp4));
  for (const OperandSpec& other : others) EXPECT_FALSE(other == plain);
}

}  // namespace
}  // namespace nibble
