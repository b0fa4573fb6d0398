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
#include "worker/trainer/data/sampler.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// At every prefix of `indices` indices: counts are within one of exact, and ordinals are
// consecutive.
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

TEST(Blend, CommonDivisorsDoNotMatter) {
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

using ::testing::ElementsAre;

// Where the phases begin, in steps.
std::vector<uint64_t> FirstSteps(const PhasePlan& plan) {
  const auto blend = PhasedBlend::Create(plan);
  EXPECT_TRUE(blend.ok()) << blend.status();
  std::vector<uint64_t> steps;
  for (size_t p = 0; p < blend->phases(); ++p) {
    EXPECT_EQ(blend->FirstIndex(p) % static_cast<uint64_t>(plan.sequences), 0u);
    steps.push_back(blend->FirstIndex(p) / static_cast<uint64_t>(plan.sequences));
  }
  return steps;
}

std::vector<BlendPhase> Parts(const std::vector<int64_t>& parts) {
  std::vector<BlendPhase> phases;
  for (const int64_t part : parts) phases.push_back({.parts = part, .weights = {1}});
  return phases;
}

PhasePlan RandomPlan(std::mt19937& random) {
  PhasePlan plan{.steps = 1 + static_cast<int64_t>(random() % 200),
                 .sequences = 1 + static_cast<int64_t>(random() % 12)};
  const size_t datasets = 1 + random() % 5;
  plan.phases.resize(1 + random() % 5);
  for (BlendPhase& phase : plan.phases) {
    phase.parts = 1 + static_cast<int64_t>(random() % 100);
    for (size_t d = 0; d < datasets; ++d) {
      phase.weights.push_back(random() % 3 == 0 ? 0 : 1 + static_cast<int64_t>(random() % 50));
    }
    if (std::accumulate(phase.weights.begin(), phase.weights.end(), int64_t{0}) == 0) {
      phase.weights[random() % datasets] = 1;
    }
  }
  for (size_t d = 0; d < datasets; ++d) {  // every data set somewhere
    int64_t& weight = plan.phases[random() % plan.phases.size()].weights[d];
    weight = std::max<int64_t>(weight, 1);
  }
  return plan;
}

TEST(PhasedBlend, PhasesBeginAtTheirShareOfTheSteps) {
  const auto shares = Parts({70, 20, 10});
  EXPECT_THAT(FirstSteps({shares, 1000, 768}), ElementsAre(0, 700, 900));
  EXPECT_THAT(FirstSteps({shares, 10, 1}), ElementsAre(0, 7, 9));
  EXPECT_THAT(FirstSteps({shares, 11, 4}), ElementsAre(0, 8, 10));  // 7.7 and 9.9
  EXPECT_THAT(FirstSteps({shares, 1, 4}), ElementsAre(0, 1, 1));    // the first has the only step
  EXPECT_THAT(FirstSteps({Parts({60, 40}), 5, 3}), ElementsAre(0, 3));
  EXPECT_THAT(FirstSteps({Parts({1'000'000'000, 1}), int64_t{1} << 62, 1}),
              ElementsAre(0, 4611686013815701891u));
}

TEST(PhasedBlend, AStepIsNeverDividedBetweenPhases) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const PhasePlan plan = RandomPlan(random);
    const auto blend = PhasedBlend::Create(plan);
    ASSERT_TRUE(blend.ok()) << blend.status();
    const int64_t all =
        std::accumulate(plan.phases.begin(), plan.phases.end(), int64_t{0},
                        [](int64_t sum, const BlendPhase& phase) { return sum + phase.parts; });
    for (int64_t step = 0; step < plan.steps; ++step) {
      // The phase whose parts the step begins in: before/all <= step/steps < (before + own)/all.
      size_t phase = 0;
      int64_t before = 0;
      while (step * all >= (before + plan.phases[phase].parts) * plan.steps) {
        before += plan.phases[phase++].parts;
      }
      for (int64_t s = 0; s < plan.sequences; ++s) {
        ASSERT_EQ(blend->PhaseAt(static_cast<uint64_t>(step * plan.sequences + s)), phase);
      }
    }
  }
}

TEST(PhasedBlend, EveryPhaseKeepsItsProportionsAndOrdinalsContinueAcrossPhases) {
  std::mt19937 random(2);
  for (int i = 0; i < 200; ++i) {
    const PhasePlan plan = RandomPlan(random);
    const auto blend = PhasedBlend::Create(plan);
    ASSERT_TRUE(blend.ok()) << blend.status();
    std::vector<uint64_t> had(plan.phases[0].weights.size(), 0);
    std::vector<int64_t> in_phase(had.size(), 0);
    size_t phase = 0;
    const uint64_t end = static_cast<uint64_t>(plan.steps * plan.sequences) + 100;  // and beyond
    for (uint64_t index = 0; index < end; ++index) {
      if (blend->PhaseAt(index) != phase) {
        phase = blend->PhaseAt(index);
        std::fill(in_phase.begin(), in_phase.end(), 0);
      }
      const BlendPlace place = blend->At(index);
      ASSERT_EQ(place.ordinal, had[place.dataset]++) << "index " << index;
      ++in_phase[place.dataset];
      const auto& weights = plan.phases[phase].weights;
      const int64_t sum = std::accumulate(weights.begin(), weights.end(), int64_t{0});
      const auto n = static_cast<int64_t>(index - blend->FirstIndex(phase)) + 1;
      for (size_t d = 0; d < had.size(); ++d) {
        ASSERT_LT(std::abs(in_phase[d] * sum - n * weights[d]), sum) << index;
      }
    }
  }
}

TEST(PhasedBlend, OnePhaseEqualsItsBlendForAnyNumberOfSteps) {
  const std::vector<int64_t> weights = {5, 3, 9, 1};
  const auto plain = Blend::Create(weights);
  for (const int64_t steps : {1, 7, 100'000}) {
    const auto phased = PhasedBlend::Create({{{.parts = 13, .weights = weights}}, steps, 6});
    for (uint64_t i = 0; i < 5000; i += 1 + i / 100) EXPECT_EQ(phased->At(i), plain->At(i));
    EXPECT_EQ(phased->At(uint64_t{1} << 62), plain->At(uint64_t{1} << 62));
  }
  EXPECT_EQ(PhasedBlend(*plain).At(12'345), plain->At(12'345));
}

TEST(PhasedBlend, OrdinalsAtFarIndicesOfLaterPhasesCountEarlierPhases) {
  const uint64_t half = uint64_t{1} << 60;
  const auto blend =
      PhasedBlend::Create({{{.parts = 1, .weights = {3, 1, 0}}, {.parts = 1, .weights = {0, 1, 1}}},
                           int64_t{1} << 61,
                           1});
  ASSERT_TRUE(blend.ok()) << blend.status();
  EXPECT_EQ(blend->FirstIndex(1), half);
  std::vector<BlendPlace> first = {blend->At(half), blend->At(half + 1)};
  std::sort(first.begin(), first.end(),
            [](const BlendPlace& a, const BlendPlace& b) { return a.dataset < b.dataset; });
  EXPECT_THAT(first, ElementsAre(BlendPlace{1, half / 4}, BlendPlace{2, 0}));
}

TEST(PhasedBlend, PlansOutOfBoundsAreRefusedByPhaseAndField) {
  const PhasePlan good{{{70, {1, 0}}, {30, {1, 2}}}, 100, 8};
  ASSERT_TRUE(PhasedBlend::Create(good).ok());
  const auto error = [&](auto change) {
    PhasePlan plan = good;
    change(plan);
    const absl::Status status = PhasedBlend::Create(plan).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(error([](auto& p) { p.phases.clear(); }), HasSubstr("phases has 0"));
  EXPECT_THAT(error([](auto& p) { p.phases.resize(65, p.phases[0]); }), HasSubstr("phases has 65"));
  EXPECT_THAT(error([](auto& p) { p.phases[1].parts = 0; }), HasSubstr("phases[1]: parts is 0"));
  EXPECT_THAT(error([](auto& p) { p.phases[0].parts = 1'000'000'001; }),
              HasSubstr("phases[0]: parts is 1000000001"));
  EXPECT_THAT(error([](auto& p) { p.phases[1].weights.pop_back(); }),
              HasSubstr("phases[1]: 1 weights, not 2"));
  EXPECT_THAT(error([](auto& p) { p.phases[1].weights[1] = -2; }),
              HasSubstr("phases[1]: weights[1] is -2"));
  EXPECT_THAT(error([](auto& p) {
                p.phases[0].weights = {0, 0};
              }),
              AllOf(HasSubstr("phases[0]"), HasSubstr("0 data sets")));
  EXPECT_THAT(error([](auto& p) { p.phases[1].weights[1] = 0; }), HasSubstr("data set 1"));
  EXPECT_THAT(error([](auto& p) {
                p.phases[0].weights = p.phases[1].weights = {1, 100'000};
              }),
              AllOf(HasSubstr("phases[0]"), HasSubstr("100000")));
  EXPECT_THAT(error([](auto& p) { p.steps = 0; }), HasSubstr("steps is 0"));
  EXPECT_THAT(error([](auto& p) { p.sequences = 0; }), HasSubstr("sequences is 0"));
  EXPECT_THAT(error([](auto& p) { p.steps = int64_t{1} << 60; }), HasSubstr("sequences is 8"));
}

}  // namespace
}  // namespace nibble
