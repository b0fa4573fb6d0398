#include "worker/trainer/data/sampler.h"

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Over whole epochs of every data set: each of its samples once per epoch, epochs in order.
void ExpectExactEpochs(uint64_t seed, const std::vector<SampledDataset>& datasets,
                       int64_t indices) {
  const auto sampler = Sampler::Create(seed, datasets);
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  std::vector<std::vector<int64_t>> times(datasets.size());
  std::vector<int64_t> had(datasets.size(), 0);
  for (size_t d = 0; d < datasets.size(); ++d) times[d].resize(datasets[d].samples);
  for (int64_t i = 0; i < indices; ++i) {
    const Sample sample = sampler->SampleAt(i);
    ASSERT_LT(static_cast<size_t>(sample.dataset), datasets.size());
    const int64_t samples = datasets[sample.dataset].samples;
    ASSERT_GE(sample.index, 0);
    ASSERT_LT(sample.index, samples);
    ASSERT_EQ(sample.epoch, had[sample.dataset]++ / samples);
    // Drawn as often as there were epochs before: never twice in one.
    ASSERT_EQ(times[sample.dataset][sample.index]++, sample.epoch) << "index " << i;
  }
}

TEST(Sampler, EverySampleOccursExactlyOncePerEpochAtEverySmallSize) {
  for (int64_t samples = 1; samples <= 130; ++samples) {
    ExpectExactEpochs(samples, {{.samples = samples}}, 3 * samples + samples / 2);
  }
}

TEST(Sampler, EverySampleOccursExactlyOncePerEpochAtPrimesAndPowers) {
  for (const int64_t samples : {997, 1009, 1024, 4096, 4099, 10'007}) {
    ExpectExactEpochs(9, {{.samples = samples}}, 2 * samples);
  }
}

TEST(Sampler, EpochsOfEveryDatasetOfABlendAreExactOnTheirOwn) {
  std::mt19937 random(6);
  for (int i = 0; i < 60; ++i) {
    std::vector<SampledDataset> datasets(1 + random() % 5);
    for (SampledDataset& dataset : datasets) {
      dataset = {.samples = 1 + static_cast<int64_t>(random() % 200),
                 .weight = 1 + static_cast<int64_t>(random() % 20)};
    }
    ExpectExactEpochs(random(), datasets, 3000);
  }
}

TEST(Sampler, AnIndexGivesTheSameSampleWhateverWasAskedBefore) {
  const std::vector<SampledDataset> datasets = {{.samples = 101, .weight = 3},
                                                {.samples = 7, .weight = 2}};
  const auto a = Sampler::Create(1, datasets), b = Sampler::Create(1, datasets);
  std::vector<Sample> forward;
  for (int64_t i = 0; i < 1000; ++i) forward.push_back(a->SampleAt(i));
  for (int64_t i = 999; i >= 0; i -= 3) EXPECT_EQ(b->SampleAt(i), forward[i]);
}

TEST(Sampler, EpochsDatasetsAndSeedsHaveOrdersOfTheirOwn) {
  const auto sampler = Sampler::Create(1, {{.samples = 500}, {.samples = 500}});
  const auto other = Sampler::Create(2, {{.samples = 500}, {.samples = 500}});
  std::map<std::pair<int32_t, int64_t>, std::vector<int64_t>> orders;
  std::vector<int64_t> reseeded;
  for (int64_t i = 0; i < 2000; ++i) {
    const Sample sample = sampler->SampleAt(i);
    orders[{sample.dataset, sample.epoch}].push_back(sample.index);
    if (i < 1000 && other->SampleAt(i).dataset == 0) {
      reseeded.push_back(other->SampleAt(i).index);
    }
  }
  ASSERT_EQ(orders.size(), 4u);
  EXPECT_NE((orders[{0, 0}]), (orders[{0, 1}]));
  EXPECT_NE((orders[{0, 0}]), (orders[{1, 0}]));
  EXPECT_NE((orders[{0, 0}]), reseeded);
}

// A job that resumes on a newer build must go on in the order it began with.
TEST(Sampler, TheOrderIsThatOfEveryEarlierVersion) {
  const auto sampler = Sampler::Create(42, {{.samples = 1000, .weight = 2}, {.samples = 10}});
  std::vector<std::pair<int32_t, int64_t>> got;
  for (const int64_t i : {0, 1, 2, 3, 4, 5, 100'000}) {
    const Sample sample = sampler->SampleAt(i);
    got.emplace_back(sample.dataset, sample.index);
  }
  EXPECT_THAT(got, ElementsAre(Pair(0, 21), Pair(1, 5), Pair(0, 609), Pair(0, 378), Pair(1, 9),
                               Pair(0, 952), Pair(1, 0)));
}

TEST(Sampler, LastIndicesOfAVeryLongRunAreInBounds) {
  const auto sampler = Sampler::Create(
      1, {{.samples = int64_t{1} << 62, .weight = 1}, {.samples = 3, .weight = 99'999}});
  for (int64_t i = 0; i < 1000; ++i) {
    const Sample sample = sampler->SampleAt(INT64_MAX - i);
    EXPECT_GE(sample.index, 0);
    EXPECT_LT(sample.index, sample.dataset == 0 ? int64_t{1} << 62 : 3);
    EXPECT_GE(sample.epoch, 0);
  }
}

TEST(Sampler, WindowsCoverEveryTokenButTheTail) {
  EXPECT_EQ(SampleCount(0, 4), 0);
  EXPECT_EQ(SampleCount(4, 4), 0);
  EXPECT_EQ(SampleCount(5, 4), 1);
  EXPECT_EQ(SampleCount(8, 4), 1);
  EXPECT_EQ(SampleCount(9, 4), 2);
  EXPECT_EQ(SampleCount(2, 1), 1);
}

TEST(Sampler, DatasetsOutOfBoundsAreRefusedByNumber) {
  const struct {
    std::vector<SampledDataset> datasets;
    const char* message;
  } kCases[] = {
      {{}, "0 data sets"},
      {{{.samples = 5}, {.samples = 0}}, "data set 1: samples is 0"},
      {{{.samples = (int64_t{1} << 62) + 1}}, "data set 0"},
      {{{.samples = 5, .weight = 0}}, "weights[0] is 0"},
  };
  for (const auto& one : kCases) {
    const absl::Status status = Sampler::Create(1, one.datasets).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.message));
  }
}

}  // namespace
}  // namespace nibble
