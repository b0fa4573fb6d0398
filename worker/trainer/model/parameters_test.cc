#include "worker/trainer/model/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

std::vector<float> Values(const ParamInfo& param, uint64_t seed) {
  std::vector<float> values(param.elements());
  TestDevice device(2);
  EXPECT_TRUE(device.ops->elementwise().Run(InitialValues(param, seed, values.data())).ok());
  return values;
}

struct Moments {
  double mean = 0, deviation = 0, low = INFINITY, high = -INFINITY;
};
Moments MomentsOf(const std::vector<float>& x) {
  Moments m;
  for (const float v : x) {
    m.mean += v / static_cast<double>(x.size());
    m.low = std::min<double>(m.low, v);
    m.high = std::max<double>(m.high, v);
  }
  for (const float v : x) m.deviation += (v - m.mean) * (v - m.mean);
  m.deviation = std::sqrt(m.deviation / static_cast<double>(x.size()));
  return m;
}

TEST(InitialValues, NormalValuesHaveTheirMeanAndDeviation) {
  const Moments m = MomentsOf(
      Values({.name = "w", .shape = {1000, 1000}, .init = Init::kNormal, .scale = 0.02}, 1));
  EXPECT_NEAR(m.mean, 0, 1e-4);
  EXPECT_NEAR(m.deviation, 0.02, 1e-4);
  EXPECT_GT(m.high, 0.08);  // tails: four deviations out of a million draws
}

TEST(InitialValues, MambaDecaysAreLogarithmsOfOneToSixteen) {
  const Moments m =
      MomentsOf(Values({.name = "a", .shape = {100000}, .init = Init::kMambaDecay}, 1));
  EXPECT_GE(m.low, 0.0);
  EXPECT_LE(m.high, std::log(16.0) + 1e-6);
  EXPECT_NEAR(m.high, std::log(16.0), 1e-3);
}

TEST(InitialValues, MambaStepsAreSoftplusInverseOfThousandthToTenth) {
  const std::vector<float> values =
      Values({.name = "dt", .shape = {100000}, .init = Init::kMambaDt}, 1);
  double log_sum = 0;
  for (const float v : values) {
    const double dt = std::log1p(std::exp(double{v}));
    EXPECT_GE(dt, 1e-3 * 0.9999);
    EXPECT_LE(dt, 0.1 * 1.0001);
    log_sum += std::log(dt);
  }
  // Uniform in the logarithm: its mean is the middle.
  EXPECT_NEAR(log_sum / 1e5, (std::log(1e-3) + std::log(0.1)) / 2, 0.02);
}

TEST(InitialValues, DependOnSeedAndNameAlone) {
  const ParamInfo param = {.name = "w", .shape = {33}, .init = Init::kNormal, .scale = 1};
  ParamInfo other = param;
  other.name = "v";
  EXPECT_EQ(Values(param, 1), Values(param, 1));
  EXPECT_NE(Values(param, 1), Values(param, 2));
  EXPECT_NE(Values(param, 1), Values(other, 1));
  // A longer parameter of the same name begins with the same values.
  ParamInfo longer = param;
  longer.shape = {64};
  std::vector<float> begin = Values(longer, 1);
  begin.resize(33);
  EXPECT_EQ(begin, Values(param, 1));
}

// The flat vector of the weights, from the parts of all ranks.
std::vector<float> WeightsOfAllRanks(const Outline& outline, Parameters::Options options) {
  TestDevice device(1);
  std::vector<float> whole;
  for (options.rank = 0; options.rank < options.world; ++options.rank) {
    const auto parameters = *Parameters::Create(device.device(), outline, 5, options);
    whole.resize(parameters->elements());
    for (const Bucket& bucket : parameters->buckets()) {
      const int64_t part = bucket.elements / options.world;
      std::copy_n(parameters->masters() + bucket.first / options.world, part,
                  whole.begin() + bucket.first + options.rank * part);
    }
  }
  return whole;
}

TEST(Parameters, PartsOfEveryRankAreAlignedAndGapsAreZero) {
  TestDevice device(1);
  const Outline outline = *MakeOutline(*ModelPreset("tiny-hybrid"));
  for (const int world : {1, 2, 3, 4}) {
    const std::unique_ptr<Parameters> parameters =
        *Parameters::Create(device.device(), outline, 1, {.world = world});
    const std::vector<float> weights = WeightsOfAllRanks(outline, {.world = world});
    EXPECT_EQ(parameters->elements() % (world * kParameterAlign), 0);
    int64_t last = 0;
    for (size_t i = 0; i < outline.params.size(); ++i) {
      const int64_t offset = parameters->offset(static_cast<int64_t>(i));
      EXPECT_EQ(offset % kParameterAlign, 0);
      for (int64_t k = last; k < offset; ++k) ASSERT_EQ(weights[k], 0.0f);
      last = offset + outline.params[i].elements();
    }
    for (int64_t k = last; k < parameters->elements(); ++k) ASSERT_EQ(weights[k], 0.0f);
    for (int64_t k = 0; k < parameters->elements(); ++k) {
      ASSERT_EQ(parameters->gradients()[k], 0.0f);
    }
  }
}

TEST(Parameters, BucketsAreWholeBlocksFromTheLastOnAndDivideByTheRanks) {
  TestDevice device(1);
  const Outline outline = *MakeOutline(*ModelPreset("tiny-hybrid"));
  const int64_t blocks = outline.spec.blocks();
  for (const int world : {1, 3}) {
    for (const int64_t bytes : {int64_t{1}, int64_t{100'000}, int64_t{1} << 40}) {
      const auto parameters =
          *Parameters::Create(device.device(), outline, 1, {.world = world, .bucket_bytes = bytes});
      const std::vector<Bucket>& buckets = parameters->buckets();
      int64_t next = 0;
      for (size_t b = 0; b < buckets.size(); ++b) {
        EXPECT_EQ(buckets[b].first, next);
        EXPECT_EQ(buckets[b].elements % (world * kParameterAlign), 0);
        next += buckets[b].elements;
        if (b > 0) {
          EXPECT_GT(buckets[b].block, buckets[b - 1].block);
          EXPECT_GE(buckets[b].elements * 4, bytes);
        }
      }
      EXPECT_EQ(next, parameters->elements());
      EXPECT_EQ(buckets.front().block, -1);
      if (bytes == 1) {
        EXPECT_EQ(buckets.size(), static_cast<size_t>(blocks) + 2);
      }
      if (bytes == int64_t{1} << 40) {
        EXPECT_EQ(buckets.size(), 1u);
      }
      for (size_t i = 0; i < outline.params.size(); ++i) {
        const auto param = static_cast<int64_t>(i);
        const Bucket& bucket = buckets[parameters->bucket_of(param)];
        EXPECT_GE(parameters->offset(param), bucket.first);
        EXPECT_LE(parameters->offset(param) + outline.params[i].elements(),
                  bucket.first + bucket.elements);
        // Complete when the bucket is.
        if (outline.params[i].block >= 0) {
          EXPECT_LE(bucket.block, outline.params[i].block);
        }
      }
    }
  }
}

TEST(Parameters, PartsEndBetweenStripsOfLinearWeights) {
  TestDevice device(1);
  for (const ModelSpec& spec : {HybridSpec(), Gpt2Spec()}) {
    const Outline outline = *MakeOutline(spec);
    for (const int world : {2, 3, 4}) {
      for (const int64_t most : Parameters::kStripRows) {
        const auto parameters = *Parameters::Create(device.device(), outline, 1,
                                                    {.world = world, .most_strip_rows = most});
        for (const LinearInfo& linear : outline.linears) {
          const int64_t rows = parameters->strip_rows(linear.weight);
          ASSERT_EQ(rows, std::gcd(linear.out, most)) << linear.name;
          const Bucket& bucket = parameters->buckets()[parameters->bucket_of(linear.weight)];
          const int64_t part = bucket.elements / world;
          const int64_t begin = parameters->offset(linear.weight) - bucket.first;
          for (int64_t end = part; end < bucket.elements; end += part) {
            if (end <= begin || end >= begin + linear.out * linear.in) continue;
            EXPECT_EQ((end - begin) % (rows * linear.in), 0) << linear.name;
          }
        }
      }
    }
  }
}

// The ranges of memory of the buckets' weights and gradients.
using Ranges = std::vector<std::pair<const float*, const float*>>;
bool Overlap(const std::pair<const float*, const float*>& a,
             const std::pair<const float*, const float*>& b) {
  return a.first < b.second && b.first < a.second;
}

TEST(Parameters, BucketsThatAreInUseTogetherHaveMemoryOfTheirOwnAndOthersShareIt) {
  TestDevice device(1);
  for (const ModelSpec& spec : {HybridSpec(), Gpt2Spec()}) {
    const Outline outline = *MakeOutline(spec);
    const auto whole = *Parameters::Create(device.device(), outline, 1, {.world = 2});
    const auto parameters = *Parameters::Create(
        device.device(), outline, 1,
        {.world = 2, .bucket_bytes = 1, .shards_gradients = true, .shards_weights = true});
    const std::vector<Bucket>& buckets = parameters->buckets();
    ASSERT_EQ(buckets.size(), static_cast<size_t>(spec.blocks()) + 2);
    Ranges weights, gradients;
    for (size_t b = 0; b < buckets.size(); ++b) {
      const auto bucket = static_cast<int64_t>(b);
      const float* g = parameters->bucket_gradients(bucket);
      weights.emplace_back();
      for (size_t i = 0; i < outline.params.size(); ++i) {
        const auto param = static_cast<int64_t>(i);
        if (parameters->bucket_of(param) != bucket) continue;
        const float* w = parameters->weight(param);
        if (weights.back().first == nullptr) weights.back().first = w;
        weights.back().second = w + outline.params[i].elements();
      }
      gradients.emplace_back(g, g + buckets[b].elements);
    }
    for (size_t b = 0; b < buckets.size(); ++b) {
      for (size_t other = 0; other < b; ++other) {
        SCOPED_TRACE(absl::StrCat(spec.name, ", buckets ", other, " and ", b));
        // A tied head reads the embedding, and adds to its gradient.
        const bool tied = spec.tied_head && other == 0;
        EXPECT_EQ(Overlap(weights[other], weights[b]), !tied);
        EXPECT_EQ(Overlap(gradients[other], gradients[b]), !tied && (b - other) % 2 == 0);
      }
    }
    EXPECT_EQ(buckets.front().begins, spec.tied_head ? spec.blocks() : -1);
    EXPECT_EQ(buckets.back().begins, spec.blocks());
    EXPECT_LT(parameters->gradient_bytes(), whole->gradient_bytes());
    EXPECT_EQ(parameters->weights(), nullptr);
    EXPECT_EQ(parameters->gradients(), nullptr);
  }
}

TEST(Parameters, WithoutTurnsWhatPassesReadInFp32HasAPlaceAndLinearWeightsShareOneByBucket) {
  TestDevice device(1);
  for (const ModelSpec& spec : {HybridSpec(), Gpt2Spec()}) {
    const Outline outline = *MakeOutline(spec);
    const auto parameters =
        *Parameters::Create(device.device(), outline, 1, {.world = 2, .bucket_bytes = 1});
    const auto range = [&](size_t param) {
      const float* w = parameters->weight(static_cast<int64_t>(param));
      return std::pair(w, w + outline.params[param].elements());
    };
    const auto shares = [&](size_t param) {
      return outline.params[param].linear >= 0 || outline.params[param].name == "head.weight";
    };
    for (size_t i = 0; i < outline.params.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        const bool same_bucket = parameters->bucket_of(static_cast<int64_t>(i)) ==
                                 parameters->bucket_of(static_cast<int64_t>(k));
        if (shares(i) && shares(k) && !same_bucket) continue;
        EXPECT_FALSE(Overlap(range(i), range(k)))
            << outline.params[i].name << " and " << outline.params[k].name;
      }
    }
    const auto in_place = *Parameters::Create(device.device(), outline, 1,
                                              {.world = 2, .bucket_bytes = 1, .reads_fp32 = true});
    EXPECT_LT(parameters->weight_bytes(), in_place->weight_bytes());
  }
}

TEST(Parameters, MastersAreTheRanksPartsOfTheInitialValues) {
  const Outline outline = *MakeOutline(HybridSpec());
  for (const bool shards_weights : {false, true}) {
    const Parameters::Options options = {
        .world = 4, .bucket_bytes = 1, .shards_weights = shards_weights};
    TestDevice device(1);
    const auto parameters = *Parameters::Create(device.device(), outline, 5, options);
    const std::vector<float> weights = WeightsOfAllRanks(outline, options);
    for (size_t i = 0; i < outline.params.size(); ++i) {
      const std::vector<float> expected = Values(outline.params[i], 5);
      ASSERT_TRUE(std::equal(expected.begin(), expected.end(),
                             weights.begin() + parameters->offset(static_cast<int64_t>(i))))
          << outline.params[i].name;
    }
  }
}

}  // namespace
}  // namespace nibble
