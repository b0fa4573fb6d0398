#include "worker/trainer/data/blend.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Over `indices` prefixes: counts are within one of exact, and ordinals count.
void ExpectProportions(const std::vector<int64_t>& weights, uint64_t indices) {
  const auto blend = Blend::Create(weights);
  ASSERT_TRUE(blend.ok()) << blend.status();
  const int64_t sum = std::accumulate(weights.begin(), weights.end(), int64_t{0});
  std::vector<int64_t> had(weights.size(), 0);
  for (uint64_t i = 0; i < indices; ++i) {
    const BlendPlace place = blend->At(i);
    ASSERT_GE(place.dataset, 0);
    ASSERT_LT(place.dataset, static_cast<int32_t>(weights.size()));
    ASSERT_EQ(static_cast<int64_t>(place.ordinal), had[place.dataset]) << "index " << i;
    ++had[place.dataset];
    for (size_t d = 0; d < weights.size(); ++d) {
      // |had − n·w/Σ| < 1, in integers.
      const int64_t difference = had[d] * sum - static_cast<int64_t>(i + 1) * weights[d];
      ASSERT_LT(std::abs(difference), sum) << "data set " << d << " after " << i + 1;
    }
  }
}

TEST(Blend, OneDatasetTakesEveryIndex) {
  for (const int64_t weight : {1, 7, 1'000'000'000}) {
    const auto blend = Blend::Create({weight});
    for (const uint64_t i : {0ull, 1ull, 999ull, 1ull << 62}) {
      EXPECT_EQ(blend->At(i), (BlendPlace{0, i}));
    }
  }
}

TEST(Blend, ProportionsAreWithinOneSampleOfExactAtEveryPrefix) {
  const std::vector<std::vector<int64_t>> kWeights = {{1, 1},
                                                      {70, 20, 10},
                                                      {60, 40},
                                                      {1, 99'999},
                                                      {99'998, 1, 1},
                                                      {2, 3, 5, 7},
                                                      {97, 89, 83},
                                                      {1, 1, 1, 1, 1},
                                                      {5000, 3000, 2000, 1},
                                                      {1, 2, 4, 8, 16, 32, 64},
                                                      {333, 333, 334}};
  for (const auto& weights : kWeights) {
    ExpectProportions(weights,
                      2 * std::accumulate(weights.begin(), weights.end(), uint64_t{0}) + 3);
  }
}

TEST(Blend, ProportionsHoldForRandomWeightsOfManyDatasets) {
  std::mt19937 random(4);
  for (int i = 0; i < 300; ++i) {
    std::vector<int64_t> weights(1 + random() % 12);
    const int64_t largest = int64_t{1} << (random() % 10);
    for (int64_t& weight : weights) weight = 1 + static_cast<int64_t>(random() % largest);
    ExpectProportions(weights, 2500);
  }
  std::vector<int64_t> weights(256);
  for (int64_t& weight : weights) weight = 1 + static_cast<int64_t>(random() % 100);
  ExpectProportions(weights, 15'000);
}

TEST(Blend, CommonDivisorsChangeNothing) {
  const auto a = Blend::Create({7, 2, 1}), b = Blend::Create({70'000'000, 20'000'000, 10'000'000});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(b->period(), 10);
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(a->At(i), b->At(i));
}

TEST(Blend, FarIndicesContinueThePattern) {
  const auto blend = Blend::Create({7, 2, 1});
  constexpr uint64_t kPeriods = uint64_t{1} << 58;
  const uint64_t weights[] = {7, 2, 1};
  for (uint64_t i = 0; i < 10; ++i) {
    const BlendPlace near = blend->At(i), far = blend->At(10 * kPeriods + i);
    EXPECT_EQ(far.dataset, near.dataset);
    EXPECT_EQ(far.ordinal, near.ordinal + kPeriods * weights[near.dataset]);
  }
}

TEST(Blend, CountsBeforeAnIndexAreThoseOfTheIndicesBefore) {
  for (const std::vector<int64_t>& weights :
       std::vector<std::vector<int64_t>>{{1}, {7, 2, 1}, {2, 3, 5, 7}, {97, 89, 83}}) {
    const auto blend = Blend::Create(weights);
    EXPECT_EQ(blend->datasets(), static_cast<int64_t>(weights.size()));
    std::vector<uint64_t> had(weights.size(), 0);
    for (uint64_t i = 0; i < 600; ++i) {
      for (size_t d = 0; d < weights.size(); ++d) {
        ASSERT_EQ(blend->CountBefore(i, static_cast<int32_t>(d)), had[d]) << i;
      }
      ++had[blend->At(i).dataset];
    }
  }
}

TEST(Blend, WeightsOutOfBoundsAreRefusedByName) {
  const struct {
    std::vector<int64_t> weights;
    const char* message;
  } kCases[] = {
      {{}, "0 data sets"},
      {std::vector<int64_t>(257, 1), "257 data sets"},
      {{1, 0}, "weights[1] is 0"},
      {{-3, 1}, "weights[0] is -3"},
      {{1, 100'000}, "weights[1] is 100000"},
      {{INT64_MAX, INT64_MAX - 1}, "weights[0]"},
  };
  for (const auto& one : kCases) {
    const absl::Status status = Blend::Create(one.weights).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("weights"), HasSubstr(one.message)));
  }
}

}  // namespace
}  // namespace nibble
