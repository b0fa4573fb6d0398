#include "worker/trainer/link/link_message.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;

RankNews FullNews() {
  RankNews news = {.doing = RankNews::Doing::kSteps, .next_step = 8, .has_sample = true, .step = 7};
  news.made = {.steps = 5,
               .skipped = 1,
               .tokens = 81'920,
               .seconds = 2.5,
               .data_seconds = 0.125,
               .weights_seconds = 0.25,
               .forward_seconds = 0.5,
               .backward_seconds = 1,
               .reduce_seconds = 0.375,
               .update_seconds = 0.1};
  news.checkpoints = {.stored = 3,
                      .failed = 2,
                      .bytes = int64_t{1} << 40,
                      .stall_seconds = 0.5,
                      .write_seconds = 9};
  news.begun = {{.revision = 1, .first_step = 0}, {.revision = 4, .first_step = 6}};
  news.refused = {{.revision = 3, .reason = "rank 1: no \"memory\""}};
  news.precision = {{.step = 7,
                     .layer = "blocks.3.mlp.up",
                     .operand = "fprop.activation",
                     .format = "nvfp4",
                     .relative_error = 0.09,
                     .underflow = 0.01,
                     .clipped = 1e-9,
                     .amax = 448,
                     .scale_spread_octaves = 11,
                     .non_finite = 4},
                    {.layer = "head", .amax = std::numeric_limits<double>::infinity()}};
  return news;
}

TEST(LinkMessageTest, NewsArriveAsTheyWereSaid) {
  const auto decoded = DecodeNews(EncodeNews(FullNews()));
  ASSERT_EQ(decoded.status(), absl::OkStatus());
  EXPECT_EQ(*decoded, FullNews());
}

TEST(LinkMessageTest, FiguresThatAreNotFiniteTravelInside) {
  RankNews news = FullNews();
  news.made.seconds = std::numeric_limits<double>::quiet_NaN();
  news.precision[0].relative_error = -std::numeric_limits<double>::infinity();
  const auto decoded = DecodeNews(EncodeNews(news));
  ASSERT_EQ(decoded.status(), absl::OkStatus());
  EXPECT_TRUE(std::isnan(decoded->made.seconds));
  EXPECT_EQ(decoded->precision[0].relative_error, -std::numeric_limits<double>::infinity());
}

TEST(LinkMessageTest, WhatIsMissingWithinIsNamedWithItsPlace) {
  const auto without = [](const std::string& field) {
    std::string text = EncodeNews(FullNews());
    const size_t at = text.find(absl::StrCat("\"", field, "\":"));
    text[at + 1] = '~';
    return std::string(DecodeNews(text).status().message());
  };
  EXPECT_EQ(without("backward"), "news.made.backward: missing");
  EXPECT_EQ(without("stall"), "news.checkpoints.stall: missing");
  EXPECT_EQ(without("begun"), "news.begun: missing");
  EXPECT_EQ(without("reason"), "news.refused.reason: missing");
  EXPECT_EQ(without("operand"), "news.precision.operand: missing");
  EXPECT_EQ(without("precision"), "news.precision: missing");
}

TEST(LinkMessageTest, WhatBecomesALabelIsBounded) {
  RankNews news = FullNews();
  news.precision[0].layer = std::string(kMaxLayerNameBytes, 'x');
  EXPECT_EQ(DecodeNews(EncodeNews(news)).status(), absl::OkStatus());
  news.precision[0].layer += 'x';
  EXPECT_THAT(std::string(DecodeNews(EncodeNews(news)).status().message()),
              HasSubstr("news.precision.layer: 129 bytes are more than 128"));
  news.precision.assign(kMaxPrecisionSamples + 1, PrecisionSample());
  EXPECT_THAT(std::string(DecodeNews(EncodeNews(news)).status().message()),
              HasSubstr("8193 are more than 8192"));
}

TEST(LinkMessageTest, TheLargestNewsFitIntoAMessage) {
  RankNews news = FullNews();
  PrecisionSample sample = news.precision[0];
  sample.layer = std::string(kMaxLayerNameBytes, 'x');
  sample.operand = "dgrad.output_gradient";
  news.precision.assign(kMaxPrecisionSamples, sample);
  EXPECT_LT(static_cast<int64_t>(EncodeNews(news).size()), kMaxLinkMessageBytes);
}

TEST(LinkMessageTest, NewsSurvivesTheWireAlsoWithoutAFiniteLoss) {
  const RankNews news = {.doing = RankNews::Doing::kStanding,
                         .next_step = 12,
                         .waiting_in = "all-gather",
                         .memory_bytes = int64_t{1} << 40,
                         .has_sample = true,
                         .step = 11,
                         .tokens = 99,
                         .loss = std::numeric_limits<double>::infinity(),
                         .gradient_norm = 0.1,
                         .learning_rate = 1e-300,
                         .revision = 2,
                         .updated = false,
                         .revision_first_step = 7,
                         .checkpoint_request = 3};
  const auto decoded = DecodeNews(EncodeNews(news));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, news);
}

TEST(LinkMessageTest, AWrongFieldIsNamed) {
  EXPECT_EQ(DecodeControl("{\"command\":7}").status().message(),
            "control.command: 7 is not in [0, 2]");
  EXPECT_EQ(DecodeHello("{\"rank\":0}").status().message(), "hello.attempt: missing");
  EXPECT_EQ(DecodeNews("[").status().message(), "news: no object");
}

TEST(LinkMessageTest, FramesAreCutAtAnyPlace) {
  const std::string stream = FrameOf("{}") + FrameOf("{\"a\":1}");
  FrameReader reader;
  std::vector<std::string> messages;
  for (const char byte : stream) {
    reader.Append({&byte, 1});
    const auto next = reader.Next();
    ASSERT_TRUE(next.ok());
    if (next->has_value()) messages.push_back(**next);
  }
  EXPECT_EQ(messages, (std::vector<std::string>{"{}", "{\"a\":1}"}));
  reader.Append("HTTP/1.1 200 OK");
  EXPECT_EQ(reader.Next().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble
