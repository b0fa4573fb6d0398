#include "worker/infer/sampler.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<int32_t> Kept(const std::vector<float>& logits, const SamplerOptions& options) {
  const auto candidates = Candidates(logits, options);
  EXPECT_TRUE(candidates.ok()) << candidates.status();
  std::vector<int32_t> tokens;
  double total = 0;
  for (const Candidate& candidate : *candidates) {
    tokens.push_back(candidate.token);
    total += candidate.share;
  }
  EXPECT_NEAR(total, 1, 1e-12);
  return tokens;
}

TEST(Sampler, TemperatureZeroTakesTheLargestAndOfEqualsTheFirst) {
  EXPECT_EQ(*Sample(std::vector<float>{1, 5, 2, 5}, {}, 0), 1);
  EXPECT_EQ(*Sample(std::vector<float>{-kInf, -3, -2}, {}, 9), 2);
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  // Chi-square with 9 degrees of freedom: 27.9 is passed once in a thousand seeds.
  std::vector<float> logits;
  for (int i = 0; i < 10; ++i) logits.push_back(std::log(static_cast<float>(1 + i)));
  for (const double temperature : {1.0, 2.0}) {
    std::vector<double> expected;
    double total = 0;
    for (int i = 0; i < 10; ++i) {
      expected.push_back(std::pow(1.0 + i, 1 / temperature));
      total += expected.back();
    }
    constexpr int kDraws = 100000;
    std::vector<int> count(10);
    for (int i = 0; i < kDraws; ++i) {
      ++count[*Sample(logits, {.temperature = temperature, .seed = 12}, i)];
    }
    double chi_square = 0;
    for (int i = 0; i < 10; ++i) {
      const double mean = kDraws * expected[i] / total;
      chi_square += (count[i] - mean) * (count[i] - mean) / mean;
    }
    EXPECT_LT(chi_square, 27.9) << temperature;
  }
}

TEST(Sampler, TopKKeepsTheLargestInOrderAndSettlesTiesByToken) {
  const std::vector<float> logits = {1, 3, 2, 3, 2, 2};
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_k = 1}), (std::vector<int32_t>{1}));
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_k = 4}), (std::vector<int32_t>{1, 3, 2, 4}));
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_k = 100}).size(), 6u);
  EXPECT_EQ(Kept(logits, {.temperature = 1}).size(), 6u);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  // Shares 1/2, 1/4, 1/8, 1/8, exact in binary.
  const float ln2 = std::log(2.0f);
  const std::vector<float> logits = {-2 * ln2, 0, -2 * ln2, -ln2};
  const auto kept = [&](double p) { return Kept(logits, {.temperature = 1, .top_p = p}); };
  EXPECT_EQ(kept(0.01), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept(0.499), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept(0.51), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(kept(0.76), (std::vector<int32_t>{1, 3, 0}));
  EXPECT_EQ(kept(0.9), (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(kept(1), (std::vector<int32_t>{1, 3, 0, 2}));
}

TEST(Sampler, TopPCountsTheShareOfWhatTopKLeft) {
  const float ln2 = std::log(2.0f);
  // Of the two kept the first has 2/3.
  const std::vector<float> logits = {0, -ln2, -ln2, -ln2};
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_k = 2, .top_p = 0.65}).size(), 1u);
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_p = 0.65}).size(), 3u);
}

TEST(Sampler, ALargeVocabularyIsKeptWholeWhereNothingCutsIt) {
  std::vector<float> logits(10000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 97) * 0.01f;
  const std::vector<int32_t> kept = Kept(logits, {.temperature = 1});
  ASSERT_EQ(kept.size(), logits.size());
  for (size_t i = 1; i < kept.size(); ++i) {
    const float a = logits[kept[i - 1]], b = logits[kept[i]];
    ASSERT_TRUE(a > b || (a == b && kept[i - 1] < kept[i])) << i;
  }
}

TEST(Sampler, TheDrawIsAFunctionOfSeedStreamAndPosition) {
  EXPECT_EQ(SamplerUniform(1, 2, 3), SamplerUniform(1, 2, 3));
  EXPECT_NE(SamplerUniform(1, 2, 3), SamplerUniform(2, 2, 3));
  EXPECT_NE(SamplerUniform(1, 2, 3), SamplerUniform(1, 3, 3));
  EXPECT_NE(SamplerUniform(1, 2, 3), SamplerUniform(1, 2, 4));
  EXPECT_NE(SamplerUniform(1, 2, 3), SamplerUniform(1, 2, 3 + (uint64_t{1} << 32)));
}

TEST(Sampler, WhatCannotBeDrawnNeverIs) {
  const std::vector<float> logits = {-kInf, 0, -1e30f};
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(*Sample(logits, {.temperature = 1}, i), 1);
}

TEST(Sampler, BadOptionsAndLogitsAreNamed) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(Validate(SamplerOptions{.temperature = -1})), HasSubstr("temperature: -1"));
  EXPECT_FALSE(Validate(SamplerOptions{.temperature = std::nan("")}).ok());
  EXPECT_THAT(message(Validate(SamplerOptions{.top_k = -2})), HasSubstr("top_k: -2"));
  EXPECT_THAT(message(Validate(SamplerOptions{.top_p = 0})), HasSubstr("top_p: 0"));
  EXPECT_THAT(message(Validate(SamplerOptions{.top_p = 1.5})), HasSubstr("top_p: 1.5"));
  EXPECT_TRUE(Validate(SamplerOptions{.temperature = 0.7, .top_k = 40, .top_p = 0.9}).ok());
  EXPECT_FALSE(Sample({}, {}, 0).ok());
  for (const double temperature : {0.0, 1.0}) {
    const SamplerOptions options = {.temperature = temperature};
    EXPECT_THAT(message(Sample(std::vector<float>{0, NAN}, options, 0).status()),
                HasSubstr("token 1 is nan"));
    EXPECT_THAT(message(Sample(std::vector<float>{kInf, 0}, options, 0).status()),
                HasSubstr("token 0 is inf"));
    EXPECT_THAT(message(Sample(std::vector<float>{-kInf, -kInf}, options, 0).status()),
                HasSubstr("all tokens are -inf"));
  }
}

}  // namespace
}  // namespace nibble
