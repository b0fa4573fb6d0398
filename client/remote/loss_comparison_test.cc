#include "client/remote/loss_comparison.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

LossSeries Series(const std::string& job, int64_t first, int64_t last, int64_t stride,
                  double offset) {
  LossSeries series = {job, {}};
  for (int64_t step = first; step <= last; step += stride) {
    v1::StepSample& sample = series.samples.emplace_back();
    sample.set_step(step);
    sample.set_loss(5 - 0.01 * static_cast<double>(step) + offset);
  }
  return series;
}

TEST(CompareLossesTest, OnlyCommonStepsAreComparedWithTheFirstJob) {
  const auto compared =
      CompareLosses({Series("a-1", 0, 100, 10, 0), Series("b-2", 50, 200, 25, 0.5)});
  ASSERT_EQ(compared.status(), absl::OkStatus());
  EXPECT_EQ(ComparisonReply(*compared, 20, "table").text,
            "STEP     a-1     b-2    Δ b-2      Δ %\n"
            "  50  4.5000  5.0000  +0.5000  +11.111\n"
            " 100  4.0000  4.5000  +0.5000  +12.500\n");
  EXPECT_EQ(ComparisonReply(*compared, 20, "csv").text,
            "step,a-1,b-2,percent:b-2\n50,4.5,5,11.1111\n100,4,4.5,12.5\n");
}

TEST(CompareLossesTest, TheTableIsThinnedEvenlyAndEndsWithTheLastStep) {
  const auto compared = CompareLosses({Series("a-1", 0, 999, 1, 0), Series("b-2", 0, 999, 1, 1)});
  ASSERT_EQ(compared.status(), absl::OkStatus());
  const std::string table = ComparisonReply(*compared, 4, "table").text;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5);
  for (const char* step : {" 249 ", " 499 ", " 749 ", " 999 "}) EXPECT_THAT(table, HasSubstr(step));
  const auto json = nlohmann::json::parse(ComparisonReply(*compared, 4, "json").json);
  EXPECT_EQ(json["jobs"][1], "b-2");
  EXPECT_EQ(json["steps"].size(), 1000u);
  EXPECT_EQ(json["steps"][999]["step"], 999);
  EXPECT_EQ(json["steps"][0]["percent_above_first"], nlohmann::json::parse("[0.0, 20.0]"));
}

TEST(CompareLossesTest, WithoutCommonStepsTheErrorListsTheSampledSteps) {
  const absl::Status none =
      CompareLosses({Series("a-1", 0, 9, 2, 0), Series("b-2", 1, 9, 2, 0)}).status();
  EXPECT_TRUE(absl::IsNotFound(none));
  EXPECT_THAT(none.message(),
              HasSubstr("a-1 has 5 samples from step 0 to 8, b-2 has 5 samples from step 1 to 9"));
  EXPECT_THAT(CompareLosses({Series("a-1", 0, 9, 1, 0), {"c-3", {}}}).status().message(),
              HasSubstr("c-3 has no known losses"));
}

TEST(CompareLossesTest, ByTokensLossesAreThoseOnTheLineBetweenTheSamplesOfTheOtherJob) {
  const auto job = [](const std::string& name, int64_t tokens_per_step, int64_t steps,
                      double offset) {
    LossSeries series = {name, {}};
    for (int64_t step = 0; step < steps; ++step) {
      v1::StepSample& sample = series.samples.emplace_back();
      sample.set_step(step);
      sample.set_tokens((step + 1) * tokens_per_step);
      sample.set_loss(4 - 0.01 * static_cast<double>(sample.tokens()) + offset);
    }
    return series;
  };
  // Both losses are straight lines of the tokens, so the difference is the offset everywhere.
  LossSeries other = job("b-2", 20, 4, 0.5);
  const auto compared = CompareLosses({job("a-1", 30, 3, 0), other}, ComparedBy::kTokens);
  ASSERT_EQ(compared.status(), absl::OkStatus());
  EXPECT_EQ(ComparisonReply(*compared, 0, "table").text,
            "TOKENS     a-1     b-2    Δ b-2      Δ %\n"
            "    30  3.7000  4.2000  +0.5000  +13.514\n"
            "    60  3.4000  3.9000  +0.5000  +14.706\n");
  EXPECT_EQ(ComparisonReply(*compared, 0, "csv").text,
            "tokens,a-1,b-2,percent:b-2\n30,3.7,4.2,13.5135\n60,3.4,3.9,14.7059\n");
  const auto json = nlohmann::json::parse(ComparisonReply(*compared, 0, "json").json);
  EXPECT_EQ(json["tokens"][1]["tokens"], 60);
  // A loss that is not finite is no end of a line.
  other.samples[1].set_loss(std::nan(""));
  const auto gap = CompareLosses({job("a-1", 30, 3, 0), other}, ComparedBy::kTokens);
  ASSERT_EQ(gap.status(), absl::OkStatus());
  EXPECT_EQ(gap->rows[0].at, 30);
  EXPECT_DOUBLE_EQ(gap->rows[0].losses[1], 4.2);
  EXPECT_THAT(
      CompareLosses({job("a-1", 30, 3, 0), job("c-3", 200, 2, 0)}, ComparedBy::kTokens)
          .status()
          .message(),
      HasSubstr(
          "within all samples: a-1 has 3 samples from 30 to 90 tokens, c-3 has 2 samples from "
          "200 to 400 tokens"));
}

}  // namespace

}  // namespace nibble
