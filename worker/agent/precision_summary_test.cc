#include "worker/agent/precision_summary.h"

#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

void AddOperand(LinkHost::Precision& samples, const std::string& layer, const std::string& format,
                double error, double underflow = 0, double clipped = 0) {
  link::v1::PrecisionSample& sample = *samples.Add();
  sample.set_step(40);
  sample.set_layer(layer);
  sample.set_operand("fprop.weight");
  sample.set_format(format);
  sample.set_relative_error(error);
  sample.set_underflow(underflow);
  sample.set_clipped(clipped);
}

TEST(PrecisionSummaryTest, TheOperandsWithTheLargestErrorsAreNamedWorstFirst) {
  LinkHost::Precision samples;
  for (int i = 0; i < 8; ++i) {
    AddOperand(samples, "blocks." + std::to_string(i), "nvfp4", 0.01 * ((i * 3) % 8 + 1));
  }
  const v1::PrecisionSummary summary = SummaryOf(samples);
  EXPECT_EQ(summary.step(), 40);
  EXPECT_EQ(summary.operands(), 8);
  EXPECT_NEAR(summary.mean_relative_error(), 0.045, 1e-12);
  ASSERT_EQ(summary.worst_size(), static_cast<int>(kWorstOperands));
  EXPECT_EQ(summary.worst(0).layer(), "blocks.5");
  EXPECT_EQ(summary.worst(0).relative_error(), 0.08);
  EXPECT_EQ(summary.worst(1).layer(), "blocks.2");
  EXPECT_EQ(summary.worst(4).layer(), "blocks.1");
}

TEST(PrecisionSummaryTest, UnquantisedOperandsCountOnlyForTheirNonFiniteValues) {
  LinkHost::Precision samples;
  AddOperand(samples, "a", "", 0);
  samples.Mutable(0)->set_non_finite(3);
  AddOperand(samples, "b", "mxfp8", 0.02, 0.25, 0.5);
  const v1::PrecisionSummary summary = SummaryOf(samples);
  EXPECT_EQ(summary.operands(), 1);
  EXPECT_EQ(summary.non_finite(), 3);
  EXPECT_EQ(summary.mean_relative_error(), 0.02);
  EXPECT_EQ(summary.most_underflow(), 0.25);
  EXPECT_EQ(summary.most_clipped(), 0.5);
  ASSERT_EQ(summary.worst_size(), 1);
  EXPECT_EQ(summary.worst(0).format(), "mxfp8");
}

TEST(PrecisionSummaryTest, AnErrorThatIsNotANumberIsTheWorst) {
  LinkHost::Precision samples;
  AddOperand(samples, "a", "nvfp4", 0.5);
  AddOperand(samples, "b", "nvfp4", std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(SummaryOf(samples).worst(0).layer(), "b");
  EXPECT_EQ(SummaryOf({}).operands(), 0);
}

}  // namespace
}  // namespace nibble
