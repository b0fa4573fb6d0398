#include "client/sensitivity/precision_table.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/sensitivity/sensitivity_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Line(int64_t step, const std::string& layer, const std::string& operand,
                 const std::string& error) {
  return absl::StrCat(R"({"schema":1,"event":"precision","time":"t","step":)", step,
                      R"(,"layer":")", layer, R"(","operand":")", operand,
                      R"(","format":"nvfp4 1x16 nearest","relative_error":)", error,
                      R"(,"snr_db":20.0,"underflow":0.01,"clipped":0.0})");
}

TEST(Sample, IsTheLastOneOfTheLogAndOtherLinesAreIgnored) {
  const auto sample = NewestSample({Line(10, "blocks.0.mlp.up", "fprop.weight", "0.5"),
                                    R"({"event":"step","step":20,"loss":3.0})",
                                    Line(20, "blocks.0.mlp.up", "fprop.weight", "0.1"),
                                    Line(20, "blocks.0.mlp.up", "fprop.activation", "0.2"),
                                    // The run resumed and made step 20 again.
                                    Line(20, "blocks.0.mlp.up", "fprop.weight", "0.3"),
                                    R"({"event":"notice","text":"precision"})",
                                    R"({"event":"precision","step":30,"lay)"});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_EQ(sample->step, 20);
  ASSERT_EQ(sample->operands.size(), 2u);
  EXPECT_EQ(sample->operands[0].relative_error, 0.3);
  EXPECT_EQ(sample->operands[1].operand, "fprop.activation");
}

TEST(Sample, IsAnErrorIfTheJobReportsNone) {
  EXPECT_THAT(std::string(NewestSample({R"({"event":"step","step":20})"}).status().message()),
              HasSubstr("metrics.precision_every"));
}

TEST(Table, AddsTheErrorsOfOperandsAndGemmsInQuadrature) {
  PrecisionSampleSet sample = {.step = 20, .operands = {}};
  sample.operands = {{"l", "fprop.activation", "", 0.3, 0.02, 0},
                     {"l", "fprop.weight", "", 0.4, 0.01, 0.5},
                     {"l", "wgrad.gradient", "", 1.2, 0, 0}};
  const PrecisionTable table = MakePrecisionTable(sample);
  ASSERT_EQ(table.layers.size(), 1u);
  EXPECT_DOUBLE_EQ(table.layers[0].gemm[0], 0.5);
  EXPECT_EQ(table.layers[0].gemm[1], 0);
  EXPECT_DOUBLE_EQ(table.layers[0].gemm[2], 1.2);
  EXPECT_DOUBLE_EQ(table.layers[0].total, 1.3);
  EXPECT_EQ(table.layers[0].underflow, 0.02);
  EXPECT_EQ(table.layers[0].clipped, 0.5);
  EXPECT_THAT(table.Kept(), IsEmpty());
}

// Layers with these errors, in a row.
PrecisionTable TableOf(const std::vector<double>& errors) {
  PrecisionSampleSet sample = {.step = 20, .operands = {}};
  for (size_t i = 0; i < errors.size(); ++i) {
    sample.operands.push_back(
        {absl::StrCat("blocks.", i, ".mlp.up"), "fprop.weight", "", errors[i], 0, 0});
  }
  return MakePrecisionTable(sample);
}

TEST(Table, SuggestsTheLayersThatStandOutMostErrorFirst) {
  const PrecisionTable table =
      TableOf({0.10, 0.11, 0.12, 0.50, 0.11, 0.10, 0.12, 0.11, 0.70, 0.11, 0.12, 0.10, 0.11, 0.11});
  EXPECT_EQ(table.layers[0].layer, "blocks.8.mlp.up");
  EXPECT_THAT(table.Kept(), ElementsAre("blocks.8.mlp.up", "blocks.3.mlp.up"));
  EXPECT_THAT(RenderPrecision("train-7", table).table,
              HasSubstr("nibble recipe set train-7 --layer 'blocks.8.mlp.up:all=bf16' --layer "
                        "'blocks.3.mlp.up:all=bf16'\n"));
}

TEST(Table, KeepsAtMost15PercentOfTheLayers) {
  EXPECT_THAT(TableOf({0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.6, 0.7}).Kept(),
              ElementsAre("blocks.7.mlp.up", "blocks.6.mlp.up"));
}

TEST(Table, EqualLayersDoNotStandOut) {
  const PrecisionTable table = TableOf({0.1, 0.1, 0.1, 0.1});
  EXPECT_THAT(table.Kept(), IsEmpty());
  EXPECT_THAT(RenderPrecision("train-7", table).table, HasSubstr("No layer stands out."));
}

TEST(Table, AnErrorThatIsNotFiniteComesFirst) {
  const auto sample =
      NewestSample({Line(20, "a", "fprop.weight", "0.1"), Line(20, "b", "fprop.weight", "\"inf\""),
                    Line(20, "c", "fprop.weight", "0.2")});
  ASSERT_TRUE(sample.ok()) << sample.status();
  const PrecisionTable table = MakePrecisionTable(*sample);
  EXPECT_EQ(table.layers[0].layer, "b");
  EXPECT_THAT(table.Kept(), ElementsAre("b"));
}

}  // namespace
}  // namespace nibble
