#include "client/report/precision_map.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;

// A sample of two layers and one operand at every 10th step.
RunRecord Record(int samples) {
  RunRecord record;
  record.layers = {"blocks.0.mlp.up", "blocks.1.mlp.up"};
  record.operands = {"fprop.weight"};
  record.formats = {"nvfp4", ""};
  for (int i = 0; i < samples; ++i) {
    record.precision[10 * i] = {{.layer = 0, .relative_error = 0.1f, .underflow = 0.01f},
                                {.layer = 1, .relative_error = 0.2f, .underflow = 0}};
  }
  return record;
}

uint8_t CodeAt(const PrecisionMap& map, size_t figure, size_t layer, size_t column) {
  return static_cast<uint8_t>(map.figures[figure].cells[0][layer * map.columns() + column]);
}

TEST(PrecisionMapTest, CodesAreLogarithmic) {
  EXPECT_EQ(PrecisionCode(0.001, 0.001, 0.1), 0);
  EXPECT_EQ(PrecisionCode(0, 0.001, 0.1), 0);
  EXPECT_EQ(PrecisionCode(0.01, 0.001, 0.1), 127);
  EXPECT_EQ(PrecisionCode(0.1, 0.001, 0.1), kHighestCode);
  EXPECT_EQ(PrecisionCode(7, 0.001, 0.1), kHighestCode);
  EXPECT_EQ(PrecisionCode(std::numeric_limits<double>::quiet_NaN(), 0.001, 0.1), kNotFiniteCode);
}

TEST(PrecisionMapTest, EachSampleIsAColumnIfThereIsRoom) {
  const PrecisionMap map = MapPrecision(Record(3), 1'000'000);
  EXPECT_THAT(map.edges, ElementsAre(0, 10, 20, 30));
  EXPECT_EQ(CodeAt(map, 0, 1, 2), kHighestCode);
  EXPECT_LT(CodeAt(map, 0, 0, 2), kHighestCode);
  EXPECT_EQ(CodeAt(map, 1, 1, 0), 0);
  ASSERT_EQ(map.worst.size(), 2u);
  EXPECT_EQ(map.worst[0].layer, "blocks.1.mlp.up");
  EXPECT_EQ(map.worst_step, 20);
}

TEST(PrecisionMapTest, AColumnOfSeveralSamplesIsTheirLargestValue) {
  RunRecord record = Record(1000);
  record.precision[5000][0].relative_error = 0.9f;
  record.precision[7000][1].relative_error = std::numeric_limits<float>::quiet_NaN();
  const PrecisionMap map = MapPrecision(record, 1);
  ASSERT_EQ(map.columns(), 24u);
  int high = 0, broken = 0;
  for (size_t column = 0; column < 24; ++column) {
    high += CodeAt(map, 0, 0, column) == kHighestCode ? 1 : 0;
    broken += CodeAt(map, 0, 1, column) == kNotFiniteCode ? 1 : 0;
  }
  EXPECT_EQ(high, 1);
  EXPECT_EQ(broken, 1);
}

TEST(PrecisionMapTest, AnOperandThatIsNotQuantisedHasNoData) {
  RunRecord record = Record(2);
  record.precision[0][0].format = 1;
  const PrecisionMap map = MapPrecision(record, 1'000'000);
  EXPECT_EQ(CodeAt(map, 0, 0, 0), kNoDataCode);
  EXPECT_NE(CodeAt(map, 0, 0, 1), kNoDataCode);
}

TEST(PrecisionMapTest, WithoutSamplesThereAreNoColumns) {
  EXPECT_EQ(MapPrecision(RunRecord{}, 1'000'000).columns(), 0u);
}

}  // namespace
}  // namespace nibble
