#include "worker/trainer/data/sampler.h"

#include <algorithm>
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
    // Drawn once in every earlier epoch, and never twice in one.
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

TEST(Sampler, TheSampleAtAnIndexDoesNotDependOnEarlierCalls) {
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

// A job that resumes on a newer build must keep its order.
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

PhasePlan RandomPlan(std::mt19937& random, size_t datasets) {
  PhasePlan plan{.steps = 1 + static_cast<int64_t>(random() % 300),
                 .sequences = 1 + static_cast<int64_t>(random() % 10)};
  plan.phases.resize(1 + random() % 4);
  for (BlendPhase& phase : plan.phases) {
    phase.parts = 1 + static_cast<int64_t>(random() % 100);
    for (size_t d = 0; d < datasets; ++d) {
      phase.weights.push_back(random() % 4 == 0 ? 0 : 1 + static_cast<int64_t>(random() % 20));
    }
    phase.weights[random() % datasets] += 1;
  }
  for (int64_t& weight : plan.phases[0].weights) weight = std::max<int64_t>(weight, 1);
  return plan;
}

TEST(Sampler, NoSampleRepeatsWithinAnEpochInAnyPhases) {
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    std::vector<int64_t> samples(1 + random() % 5);
    for (int64_t& count : samples) count = 1 + static_cast<int64_t>(random() % 300);
    const PhasePlan plan = RandomPlan(random, samples.size());
    const auto sampler = Sampler::Create(random(), samples, plan);
    ASSERT_TRUE(sampler.ok()) << sampler.status();
    std::vector<std::vector<int64_t>> times(samples.size());
    std::vector<int64_t> had(samples.size(), 0);
    for (size_t d = 0; d < samples.size(); ++d) times[d].resize(samples[d]);
    for (int64_t index = 0; index < plan.steps * plan.sequences + 50; ++index) {
      const Sample sample = sampler->SampleAt(index);
      ASSERT_EQ(sample.epoch, had[sample.dataset]++ / samples[sample.dataset]);
      ASSERT_EQ(times[sample.dataset][sample.index]++, sample.epoch) << "index " << index;
    }
  }
}

TEST(Sampler, PhasesDoNotChangeTheOrderWithinADataset) {
  // Data set 1 alone, and from the second half after data set 0: the order of its samples is equal.
  const std::vector<int64_t> samples = {40, 30};
  const auto alone = Sampler::Create(3, samples, {{{1, {0, 1}}, {1, {1, 0}}}, 100, 1});
  const auto late = Sampler::Create(3, samples, {{{1, {1, 0}}, {1, {0, 1}}}, 100, 1});
  const auto mixed = Sampler::Create(3, samples, {{{1, {3, 1}}, {1, {1, 3}}}, 100, 1});
  ASSERT_TRUE(alone.ok() && late.ok() && mixed.ok());
  const auto order = [](const Sampler& sampler) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < 100; ++i) {
      const Sample sample = sampler.SampleAt(i);
      if (sample.dataset == 1) indices.push_back(sample.index);
    }
    return indices;
  };
  ASSERT_EQ(order(*alone).size(), 50u);
  EXPECT_EQ(order(*late), order(*alone));
  std::vector<int64_t> of_mixed = order(*mixed);  // up to one sample per phase more or less
  ASSERT_GE(of_mixed.size(), 49u);
  of_mixed.resize(49);
  std::vector<int64_t> of_alone = order(*alone);
  of_alone.resize(49);
  EXPECT_EQ(of_mixed, of_alone);
}

TEST(Sampler, OnePhaseEqualsTheBlendOfItsWeightsForAnyNumberOfSteps) {
  const auto plain =
      Sampler::Create(42, {{.samples = 101, .weight = 3}, {.samples = 7, .weight = 2}});
  for (const int64_t steps : {1, 10, 1'000'000}) {
    const auto phased = Sampler::Create(42, {101, 7}, {{{5, {3, 2}}}, steps, 4});
    for (int64_t i = 0; i < 2000; ++i) ASSERT_EQ(phased->SampleAt(i), plain->SampleAt(i));
  }
}

TEST(Sampler, PhasesFollowTheStepsOfTheRun) {
  const std::vector<BlendPhase> phases = {{70, {1, 0}}, {30, {0, 1}}};
  const auto ten = Sampler::Create(1, {1000, 1000}, {phases, 10, 2});
  const auto hundred = Sampler::Create(1, {1000, 1000}, {phases, 100, 2});
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(ten->SampleAt(i).dataset, i < 14 ? 0 : 1) << i;
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(hundred->SampleAt(i).dataset, i < 140 ? 0 : 1) << i;
}

// As above, with phases.
TEST(Sampler, TheOrderOfPhasesIsThatOfEveryEarlierVersion) {
  const auto sampler =
      Sampler::Create(42, {1000, 10}, {{{70, {2, 1}}, {20, {1, 1}}, {10, {0, 1}}}, 100, 3});
  ASSERT_TRUE(sampler.ok()) << sampler.status();
  std::vector<std::pair<int32_t, int64_t>> got;
  for (const int64_t i : {0, 1, 2, 209, 210, 211, 212, 269, 270, 271, 5000}) {
    const Sample sample = sampler->SampleAt(i);
    got.emplace_back(sample.dataset, sample.index);
  }
  EXPECT_THAT(got,
              ElementsAre(Pair(0, 21), Pair(1, 5), Pair(0, 609), Pair(0, 797), Pair(0, 471),
                          Pair(1, 7), Pair(0, 46), Pair(1, 8), Pair(1, 7), Pair(1, 1), Pair(1, 9)));
}

TEST(Sampler, PlansThatDoNotFitTheDatasetsAreRefused) {
  const PhasePlan plan{{{1, {1, 1}}}, 10, 1};
  absl::Status status = Sampler::Create(1, {5, 5, 5}, plan).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("2 weights each, but there are 3"));
  status = Sampler::Create(1, {5, 0}, plan).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("data set 1: samples is 0"));
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
