#include "kernels/formats/scaling.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t BitsOf(float x) { return std::bit_cast<uint32_t>(x); }

// FP32 operations computed in double and rounded once: a product of two floats is exact in double,
// and a quotient rounded to double and then to float is rounded correctly.
float Times(double a, double b) { return static_cast<float>(a * b); }
float Over(double a, double b) { return static_cast<float>(a / b); }
float Clamp(float x) { return std::min(x, FLT_MAX); }

// Section 2 of the numeric contract, step by step.
struct Expected {
  float s_enc, s_enc_over_6, scaled, scale, enc;
};

float NearestE4M3(float x) {
  float best = 0;
  int best_code = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double value = code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10);
    const double middle = (best + value) / 2;
    if (x < middle || (x == middle && best_code % 2 == 0)) break;
    best = static_cast<float>(value);
    best_code = code;
  }
  return best;
}

Expected Formula(float amax, float block_amax) {
  Expected e;
  e.s_enc = Clamp(Over(2688, amax));
  if (amax == 0 || e.s_enc == 0) e.s_enc = 1;
  e.s_enc_over_6 = Times(e.s_enc, FloatOf(0x3e2aaaab));
  e.scaled = Clamp(Times(block_amax, e.s_enc_over_6));
  e.scale = NearestE4M3(e.scaled);
  e.enc = Clamp(Over(1, Times(e.scale, Over(1, e.s_enc))));
  return e;
}

std::vector<float> Amaxes() {
  std::vector<float> amax = {0,       FLT_TRUE_MIN, 3 * FLT_TRUE_MIN, FLT_MIN, 1,    6,
                             448,     2688,         0x1.8p+2f,        15.5f,   8,    0x1.fep+127f,
                             FLT_MAX, kInfinity,    7.8e-36f,         8e-36f,  1e30f};
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) amax.push_back(FloatOf(random() % 0x7f800000u));
  return amax;
}

TEST(Nvfp4Scaling, ConstantsMatchBitForBit) {
  EXPECT_EQ(BitsOf(Nvfp4::kOneSixth), 0x3e2aaaabu);
  EXPECT_EQ(BitsOf(Nvfp4::kOneOver2688), 0x39c30c31u);
  EXPECT_EQ(BitsOf(Nvfp4::kOneOver36x448x448), 0x34149b93u);
  EXPECT_EQ(Nvfp4::kOneSixth, static_cast<float>(1.0 / 6.0));
  EXPECT_EQ(Nvfp4::kOneOver2688, static_cast<float>(1.0 / 2688.0));
  EXPECT_EQ(Nvfp4::kOneOver36x448x448, static_cast<float>(1.0 / (36.0 * 448.0 * 448.0)));
}

TEST(Nvfp4Scaling, TensorScaleFollowsTheFormulaForEveryAmax) {
  for (const float amax : Amaxes()) {
    const Expected e = Formula(amax, 0);
    const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(amax, false);
    EXPECT_EQ(BitsOf(tensor.amax), BitsOf(amax));
    EXPECT_EQ(BitsOf(tensor.encode), BitsOf(e.s_enc)) << amax;
    EXPECT_EQ(BitsOf(tensor.encode_over_6), BitsOf(e.s_enc_over_6)) << amax;
    EXPECT_EQ(BitsOf(tensor.decode), BitsOf(Over(1, e.s_enc))) << amax;
  }
}

TEST(Nvfp4Scaling, TensorScaleIsOneWithoutAmaxAndAtMostFloatMax) {
  EXPECT_EQ(Nvfp4::ForTensor(0, false).encode, 1.0f);
  EXPECT_EQ(Nvfp4::ForTensor(kInfinity, false).encode, 1.0f);
  EXPECT_EQ(Nvfp4::ForTensor(FLT_TRUE_MIN, false).encode, FLT_MAX);
  EXPECT_EQ(Nvfp4::ForTensor(FLT_MIN, false).encode, FLT_MAX);
}

TEST(Nvfp4Scaling, BlockScaleAndFactorsFollowTheFormulas) {
  std::mt19937_64 random(2);
  for (const float amax : Amaxes()) {
    const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(amax, false);
    const double bound = std::isinf(amax) ? FLT_MAX : amax;
    std::vector<float> blocks = {0, amax, FLT_TRUE_MIN, kInfinity, 2 * amax};
    for (int i = 0; i < 40; ++i) {
      blocks.push_back(static_cast<float>(std::ldexp(random() % 100000 / 1e5 * bound, -(i / 2))));
    }
    for (const float block : blocks) {
      const Expected e = Formula(amax, block);
      const RoundedLanes<float> scale = Nvfp4::BlockScale<float>(block, tensor);
      ASSERT_EQ(BitsOf(scale.magnitude), BitsOf(e.scale)) << block << " of " << amax;
      ASSERT_EQ(E4M3::Decode<float>(scale.code), e.scale) << block << " of " << amax;
      const float enc = Nvfp4::EncodeFactor<float>(scale.magnitude, tensor);
      ASSERT_EQ(BitsOf(enc), BitsOf(e.enc)) << block << " of " << amax;
      const float decode = Nvfp4::DecodeFactor<float>(scale.magnitude, amax);
      if (std::isinf(amax)) continue;
      ASSERT_EQ(BitsOf(decode), BitsOf(Times(Times(e.scale, amax), FloatOf(0x39c30c31))));
    }
  }
}

TEST(Nvfp4Scaling, WorkedVectorsMatchBitForBit) {
  struct Case {
    uint32_t amax, block_amax, s_enc, s_enc_over_6, scale, enc;
  };
  const Case cases[] = {
      {0x41000000, 0x41000000, 0x43a80000, 0x42600000, 0x7e, 0x3f400000},
      {0x40c00000, 0x40c00000, 0x43e00000, 0x42955556, 0x7e, 0x3f800000},
      {0x3f800000, 0x00000000, 0x45280000, 0x43e00000, 0x00, 0x7f7fffff},
      {0x00000000, 0x00000000, 0x3f800000, 0x3e2aaaab, 0x00, 0x7f7fffff},
      {0x7f7f0000, 0x7f7f0000, 0x0528a8a9, 0x03e0e0e2, 0x7e, 0x00c0c0c1},
      {0x41780000, 0x41780000, 0x432d6b5b, 0x41e739cf, 0x7e, 0x3ec6318d},
  };
  for (const Case& c : cases) {
    const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(FloatOf(c.amax), false);
    EXPECT_EQ(BitsOf(tensor.encode), c.s_enc);
    EXPECT_EQ(BitsOf(tensor.encode_over_6), c.s_enc_over_6);
    const RoundedLanes<float> scale = Nvfp4::BlockScale<float>(FloatOf(c.block_amax), tensor);
    EXPECT_EQ(scale.code, c.scale);
    EXPECT_EQ(BitsOf(Nvfp4::EncodeFactor<float>(scale.magnitude, tensor)), c.enc);
  }
}

// BF16 data, like tensors in training: the formulas differ where the quotient of two short numbers
// is a tie of E4M3, which quotients of arbitrary FP32 numbers rarely are.
TEST(Nvfp4Scaling, FormulaBefore214DividesFirstAndDiffersInFewBlocks) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  const auto bf16 = [](float x) { return FloatOf((BitsOf(x) + 0x8000) & 0xffff0000); };
  int blocks = 0;
  int different = 0;
  for (int i = 0; i < 1000; ++i) {
    float amax = 0;
    std::vector<float> block_amax(1000, 0.0f);
    for (float& block : block_amax) {
      for (int k = 0; k < 16; ++k) block = std::max(block, bf16(std::fabs(normal(random))));
      amax = std::max(amax, block);
    }
    const Nvfp4::TensorScale now = Nvfp4::ForTensor(amax, false);
    const Nvfp4::TensorScale before = Nvfp4::ForTensor(amax, true);
    for (const float block : block_amax) {
      const uint32_t code = Nvfp4::BlockScale<float>(block, before).code;
      const float first = Times(Over(block, 6), before.encode);
      ASSERT_EQ(E4M3::Decode<float>(code), NearestE4M3(Clamp(first)));
      different += code != Nvfp4::BlockScale<float>(block, now).code;
      ++blocks;
    }
  }
  EXPECT_GT(different, blocks * 0.0002) << "of " << blocks;
  EXPECT_LT(different, blocks * 0.0015) << "of " << blocks;
  RecordProperty("different", different);
}

TEST(Nvfp4Scaling, GemmAlphaMultipliesFromLeftToRight) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 10000; ++i) {
    const float alpha = FloatOf(0x3e000000u + random() % 0x03000000u);
    const float a = FloatOf(0x3c000000u + random() % 0x08000000u);
    const float b = FloatOf(0x3c000000u + random() % 0x08000000u);
    const float expected = Times(Times(Times(alpha, a), b), FloatOf(0x34149b93));
    ASSERT_EQ(BitsOf(Nvfp4::GemmAlpha(alpha, a, b)), BitsOf(expected));
  }
}

TEST(Nvfp4Scaling, LanesGiveTheScalarBits) {
  using F4 = LaneVector<4>::F;
  std::mt19937_64 random(5);
  for (const bool divide_first : {false, true}) {
    for (const float amax : Amaxes()) {
      const Nvfp4::TensorScale tensor = Nvfp4::ForTensor(amax, divide_first);
      F4 block;
      for (int i = 0; i < 4; ++i) {
        block[i] = static_cast<float>(amax * (random() % 1000 / 999.0));
        if (std::isnan(block[i])) block[i] = 0;
      }
      const RoundedLanes<F4> scale = Nvfp4::BlockScale<F4>(block, tensor);
      const F4 enc = Nvfp4::EncodeFactor<F4>(scale.magnitude, tensor);
      for (int i = 0; i < 4; ++i) {
        const RoundedLanes<float> one = Nvfp4::BlockScale<float>(block[i], tensor);
        ASSERT_EQ(scale.code[i], one.code) << block[i] << " of " << amax;
        ASSERT_EQ(BitsOf(enc[i]), BitsOf(Nvfp4::EncodeFactor<float>(one.magnitude, tensor)));
      }
    }
  }
}

template <class Element>
void ExpectFp32Scale(float max) {
  EXPECT_EQ(Element::Max(), max);
  for (const float amax : Amaxes()) {
    const float scale = Fp32Scale<Element>::BlockScale(amax);
    ASSERT_EQ(BitsOf(scale), BitsOf(Clamp(Over(amax, max)))) << amax;
    if (scale == 0) continue;
    ASSERT_EQ(BitsOf(Fp32Scale<Element>::EncodeFactor(scale)), BitsOf(Clamp(Over(1, scale))))
        << amax;
  }
}

TEST(Fp32Scaling, IsAmaxOverTheLargestValueOfTheElement) {
  ExpectFp32Scale<E2M1>(6);
  ExpectFp32Scale<E4M3>(448);
  ExpectFp32Scale<E5M2>(57344);
}

TEST(MxScaling, LargestValueNeverSaturatesAndHalfTheScaleWouldSaturate) {
  for (const float amax : Amaxes()) {
    if (std::isinf(amax)) continue;
    const uint32_t fp4 = MxScale<E2M1>::BlockScale(amax);
    const uint32_t fp8 = MxScale<E4M3>::BlockScale(amax);
    EXPECT_LE(amax, 6 * std::ldexp(1.0, static_cast<int>(fp4) - 127));
    EXPECT_LE(amax, 448 * std::ldexp(1.0, static_cast<int>(fp8) - 127));
    EXPECT_TRUE(fp4 == 0 || amax > 6 * std::ldexp(1.0, static_cast<int>(fp4) - 128)) << amax;
    EXPECT_TRUE(fp8 == 0 || amax > 448 * std::ldexp(1.0, static_cast<int>(fp8) - 128)) << amax;
  }
}

}  // namespace
}  // namespace nibble
