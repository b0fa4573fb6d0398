#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/layers/layer_isa.h"
#include "kernels/cpu/layers/layer_testing.h"
#include "kernels/cpu/layers/vec_testing_kernels.h"
#include "kernels/formats/bfloat16.h"

namespace nibble::cpu {
namespace {

constexpr double kSmallest = std::numeric_limits<float>::min();

class VecTest : public testing::TestWithParam<LayerIsa> {
 protected:
  const VecTestingKernels& k_ = TableFor<VecTestingKernels>(GetParam());
};

float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

// Every so-many-th float there is, sixteen at a time; the step is odd, so that all mantissas and
// signs come up.
template <class Visit>
void ForFloats(Visit&& visit) {
  float x[16];
  int lane = 0;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    x[lane++] = FloatOf(static_cast<uint32_t>(bits));
    if (lane == 16) visit(x);
    lane %= 16;
  }
}

// Units in the last place of the expected value, as a float.
double UlpsOff(float actual, double expected) {
  int exponent;
  std::frexp(expected, &exponent);
  return std::abs(actual - expected) / std::ldexp(1.0, exponent - 24);
}

TEST_P(VecTest, ExpIsWithinThreeUlpsAndExactAtTheEnds) {
  double worst = 0;
  const auto visit = [&](const float* x) {
    float y[16];
    k_.exp(x, y);
    for (int i = 0; i < 16; ++i) {
      const double expected = std::exp(static_cast<double>(x[i]));
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(y[i])) << x[i];
      } else if (expected > std::numeric_limits<float>::max()) {
        EXPECT_EQ(y[i], kInf) << x[i];
      } else if (expected < kSmallest) {
        EXPECT_LE(y[i], kSmallest) << x[i];
        if (x[i] < -87.4f) {
          EXPECT_EQ(y[i], 0) << x[i];
        }
      } else {
        worst = std::max(worst, UlpsOff(y[i], expected));
      }
    }
  };
  ForFloats(visit);
  // The range that matters, closer.
  for (float from = -90; from < 90; from += 0.016f) {
    float x[16];
    for (int i = 0; i < 16; ++i) x[i] = from + 0.001f * static_cast<float>(i);
    visit(x);
  }
  EXPECT_LT(worst, 3);
  EXPECT_GT(worst, 0.5);
}

TEST_P(VecTest, ExpKeepsEveryKindOfNan) {
  float x[16], y[16];
  const uint32_t nans[] = {0x7fc00000, 0xffc00000, 0x7fffffff, 0xffffffff, 0x7f800001, 0xffc001ff};
  for (int i = 0; i < 16; ++i) x[i] = FloatOf(nans[i % 6]);
  k_.exp(x, y);
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
  k_.sigmoid(x, y);
  for (const float v : y) EXPECT_TRUE(std::isnan(v));
}

TEST_P(VecTest, SigmoidAndSiluAreWithinFiveUlps) {
  double worst = 0;
  ForFloats([&](const float* x) {
    float sigmoid[16], silu[16];
    k_.sigmoid(x, sigmoid);
    k_.silu(x, silu);
    for (int i = 0; i < 16; ++i) {
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(sigmoid[i]) && std::isnan(silu[i]));
        continue;
      }
      const double expected = 1 / (1 + std::exp(-static_cast<double>(x[i])));
      // Below −87 the result leaves the normal range.
      if (x[i] < -87) {
        EXPECT_LE(sigmoid[i], 2e-38);
        continue;
      }
      worst = std::max(worst, UlpsOff(sigmoid[i], expected));
      const double product = x[i] * expected;
      if (std::isfinite(x[i]) && std::abs(product) >= kSmallest) {
        worst = std::max(worst, UlpsOff(silu[i], product));
      }
    }
  });
  EXPECT_LT(worst, 5);
}

TEST_P(VecTest, RoundingToBf16MatchesTheFormatsAndKeepsNan) {
  ForFloats([&](const float* x) {
    uint16_t y[16];
    float rounded[16], widened[16];
    k_.to_bf16(x, y);
    k_.rounded(x, rounded);
    k_.from_bf16(y, widened);
    for (int i = 0; i < 16; ++i) {
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(DecodeBf16(y[i])) && std::isnan(rounded[i]));
        continue;
      }
      ASSERT_EQ(y[i], EncodeBf16(x[i]));
      ASSERT_EQ(rounded[i], DecodeBf16(y[i]));
      ASSERT_EQ(widened[i], rounded[i]);
    }
  });
}

TEST_P(VecTest, SquareRootIsRoundedCorrectly) {
  ForFloats([&](const float* x) {
    float y[16];
    k_.sqrt(x, y);
    for (int i = 0; i < 16; ++i) {
      if (x[i] >= 0) {
        ASSERT_EQ(y[i], std::sqrt(x[i]));
      } else if (x[i] != 0) {
        ASSERT_TRUE(std::isnan(y[i]));
      }
    }
  });
}

TEST_P(VecTest, ReductionsAddHalvesThenQuarters) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 100; ++round) {
    float x[16], tree[16];
    for (float& v : x) v = normal(random);
    std::copy(x, x + 16, tree);
    for (int width = 8; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) tree[i] += tree[i + width];
    }
    EXPECT_EQ(k_.sum(x), tree[0]);
    EXPECT_EQ(k_.largest(x), *std::max_element(x, x + 16));
  }
}

TEST_P(VecTest, MaxReturnsTheSecondOperandIfOneIsNan) {
  const std::vector<float> nan(16, kNan), one(16, 1);
  float y[16];
  k_.max(nan.data(), one.data(), y);
  EXPECT_TRUE(std::all_of(y, y + 16, [](float v) { return v == 1; }));
  k_.max(one.data(), nan.data(), y);
  EXPECT_TRUE(std::all_of(y, y + 16, [](float v) { return std::isnan(v); }));
}

TEST_P(VecTest, PartialLoadsAndStoresTouchOnlyTheirElements) {
  for (int64_t n = 1; n < 16; ++n) {
    // Exactly n elements, so that the address sanitizer sees one too many.
    std::vector<float> x(n, 3), y(n), all(16, -1);
    std::vector<uint16_t> x16(n, EncodeBf16(3)), y16(n);
    k_.part(x.data(), n, y.data(), all.data());
    EXPECT_EQ(y, x);
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(all[i], i < n ? 3 : 0);
    k_.part_bf16(x16.data(), n, y16.data(), all.data());
    EXPECT_EQ(y16, x16);
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(all[i], i < n ? 3 : 0);
    const std::vector<float> nan(16, kNan);
    k_.first_lanes(nan.data(), n, 5, all.data());
    for (int64_t i = 0; i < 16; ++i) EXPECT_EQ(std::isnan(all[i]), i < n);
    EXPECT_EQ(all[15], 5);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, VecTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& set) { return std::string(Name(set.param)); });

}  // namespace
}  // namespace nibble::cpu
