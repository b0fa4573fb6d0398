#include "kernels/formats/minifloat.h"

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/e8m0.h"

namespace nibble {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

float FromU32(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t ToU32(float x) { return std::bit_cast<uint32_t>(x); }

// A format by its definition only: the magnitudes of codes 0, 1, …, up to the largest finite one.
struct Grid {
  std::vector<double> value;
  int sign;
  int nan;

  int max_code() const { return static_cast<int>(value.size()) - 1; }
  double max() const { return value.back(); }

  // Midpoints are exact in double, so this is exact for every float.
  int NearestEven(double magnitude) const {
    int code = 0;
    while (code < max_code()) {
      const double middle = (value[code] + value[code + 1]) / 2;
      if (magnitude < middle || (magnitude == middle && code % 2 == 0)) break;
      ++code;
    }
    return code;
  }
  int Floor(double magnitude) const {
    int code = max_code();
    while (value[code] > magnitude) --code;
    return code;
  }
  int Encode(float x) const {
    if (std::isnan(x)) return nan;
    return NearestEven(std::fabs(static_cast<double>(x))) | (std::signbit(x) ? sign : 0);
  }
  int EncodeStochastic(float x, int random) const {
    if (std::isnan(x)) return nan;
    const float magnitude = std::fabs(x);
    int code = max_code();
    if (magnitude < max()) {
      const int below = Floor(magnitude);
      const double step = value[below + 1] - value[below];
      const float added = static_cast<float>(random / 256.0 * step);
      code = Floor(magnitude + added);
    }
    return code | (std::signbit(x) ? sign : 0);
  }
};

// `codes` finite magnitudes of a format with these field widths.
Grid GridOf(int exponent_bits, int mantissa_bits, int codes, int nan) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  Grid grid = {{}, 1 << (exponent_bits + mantissa_bits), nan};
  for (int code = 0; code < codes; ++code) {
    const int field = code >> mantissa_bits;
    const int mantissa = code & ((1 << mantissa_bits) - 1);
    grid.value.push_back(
        field == 0 ? std::ldexp(mantissa, 1 - bias - mantissa_bits)
                   : std::ldexp(mantissa + (1 << mantissa_bits), field - bias - mantissa_bits));
  }
  return grid;
}

Grid E2M1Grid() { return {{0, 0.5, 1, 1.5, 2, 3, 4, 6}, 8, 7}; }
Grid E4M3Grid() { return GridOf(4, 3, 0x7f, 0x7f); }
Grid E5M2Grid() { return GridOf(5, 2, 0x7c, 0x7f); }

// The inputs where rounding can go wrong: every code, every midpoint, and their neighbours.
std::vector<float> CriticalValues(const Grid& grid) {
  std::vector<float> around;
  for (int code = 0; code <= grid.max_code(); ++code) {
    around.push_back(static_cast<float>(grid.value[code]));
    const double next = code < grid.max_code() ? grid.value[code + 1] : 2 * grid.max();
    around.push_back(static_cast<float>((grid.value[code] + next) / 2));
  }
  std::vector<float> values;
  for (const float x : around) {
    values.insert(values.end(), {x, std::nextafter(x, kInf), std::nextafter(x, -kInf)});
  }
  for (const uint32_t bits : {1u, 2u, 0x7fffffu, 0x800000u, 0x800001u, 0x7f7fffffu, 0x7f800000u,
                              0x7f800001u, 0x7fc00000u, 0x7fffffffu}) {
    values.push_back(FromU32(bits));
  }
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

template <class E>
void ExpectCodesStandForTheirValues(const Grid& grid) {
  EXPECT_EQ(E::Max(), grid.max());
  for (int code = 0; code <= grid.max_code(); ++code) {
    for (const int sign : {0, grid.sign}) {
      const float expected = static_cast<float>(sign ? -grid.value[code] : grid.value[code]);
      const float decoded = E::template Decode<float>(code | sign);
      EXPECT_EQ(ToU32(decoded), ToU32(expected)) << "code " << (code | sign);
      EXPECT_EQ(E::Encode(decoded), static_cast<uint32_t>(code | sign));
    }
  }
}

// Rounding gives the code and its magnitude; four lanes at once give the same.
template <class E>
void ExpectNearest(const Grid& grid, float x) {
  const uint32_t expected = grid.Encode(x);
  ASSERT_EQ(E::Encode(x), expected) << x << " = 0x" << std::hex << ToU32(x);
  if (std::isnan(x)) return;
  const float magnitude = static_cast<float>(grid.value[expected & ~grid.sign]);
  ASSERT_EQ(E::template Nearest<float>(ToU32(std::fabs(x))).magnitude, magnitude) << x;
  using F4 = LaneVector<4>::F;
  const F4 four = {0.0f, std::fabs(x), E::Max(), std::fabs(x)};
  const RoundedLanes<F4> rounded = E::template Nearest<F4>(BitsOf<F4>(four));
  ASSERT_EQ(rounded.magnitude[1], magnitude) << x;
  ASSERT_EQ((rounded.code[3] & E::kMagnitudeMask), expected & ~grid.sign) << x;
  ASSERT_EQ(rounded.magnitude[0], 0.0f);
  ASSERT_EQ(rounded.magnitude[2], grid.max());
}

template <class E>
void ExpectNearestEverywhere(const Grid& grid) {
  for (const float x : CriticalValues(grid)) ExpectNearest<E>(grid, x);
  // Every BF16 value, and a sweep over all FP32 patterns.
  for (uint32_t code = 0; code < 0x10000; ++code) ExpectNearest<E>(grid, FromU32(code << 16));
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 16381) {
    ExpectNearest<E>(grid, FromU32(static_cast<uint32_t>(bits)));
  }
}

template <class E>
void ExpectStochastic(const Grid& grid, float x) {
  for (int random = 0; random < 256; ++random) {
    const uint32_t expected = grid.EncodeStochastic(x, random);
    ASSERT_EQ(E::EncodeStochastic(x, random), expected) << x << " with " << random;
    if (std::isnan(x)) continue;
    const RoundedLanes<float> rounded =
        E::template Stochastic<float>(ToU32(std::fabs(x)), static_cast<uint32_t>(random));
    ASSERT_EQ(rounded.magnitude, grid.value[expected & ~grid.sign]) << x << " with " << random;
  }
}

template <class E>
void ExpectStochasticEverywhere(const Grid& grid) {
  for (const float x : CriticalValues(grid)) ExpectStochastic<E>(grid, x);
  // A random byte makes the difference at multiples of 1/256 of the step and their neighbours.
  for (int code = 0; code < grid.max_code(); ++code) {
    const double step = grid.value[code + 1] - grid.value[code];
    for (int part = 1; part < 256; part += 6) {
      const float x = static_cast<float>(grid.value[code] + part / 256.0 * step);
      ExpectStochastic<E>(grid, x);
      ExpectStochastic<E>(grid, -std::nextafter(x, 0.0f));
    }
  }
}

// Compares rounding without codes with rounding with codes, for one value and four lanes at once.
template <class E>
void ExpectValueOfNearest(float x) {
  const uint32_t bits = ToU32(std::fabs(x));
  constexpr uint32_t kHalfSpacing = 1u << (22 - E::kMantissa);
  if (bits >= E::kMaxBits + kHalfSpacing) return;  // out of its domain
  const float expected = E::template Nearest<float>(bits).magnitude;
  const float value = E::template NearestValue<float>(x);
  ASSERT_EQ(ToU32(std::fabs(value)), ToU32(expected)) << x << " = 0x" << std::hex << ToU32(x);
  ASSERT_TRUE(value == 0 || std::signbit(value) == std::signbit(x)) << x;
  using F4 = LaneVector<4>::F;
  const F4 four = E::template NearestValue<F4>(F4{x, -x, E::Max(), 0.0f});
  ASSERT_EQ(four[0], value) << x;
  ASSERT_EQ(four[1], -value) << x;
  ASSERT_EQ(four[2], E::Max());
}

template <class E>
void ExpectValueOfStochastic(float x) {
  const uint32_t bits = ToU32(std::fabs(x));
  if (bits > E::kMaxBits) return;
  using F4 = LaneVector<4>::F;
  using U4 = LaneVector<4>::U;
  for (uint32_t random = 0; random < 256; ++random) {
    const float expected = E::template Stochastic<float>(bits, random).magnitude;
    const uint32_t word = random | (random << 8) | 0xa55a0000u;
    for (const int byte : {0, 1}) {
      const float part = E::template RandomPart<float>(word, byte);
      ASSERT_EQ(E::template StochasticMagnitude<float>(FromU32(bits), part), expected)
          << x << " with " << random;
    }
    const F4 parts = E::template RandomPart<F4>(U4{} + word, 0);
    const F4 four = E::template StochasticMagnitude<F4>(F4{} + FromU32(bits), parts);
    ASSERT_EQ(four[3], expected) << x << " with " << random;
  }
}

template <class E>
void ExpectValuesWithoutCodes(const Grid& grid) {
  for (const float x : CriticalValues(grid)) {
    if (!std::isnan(x)) ExpectValueOfNearest<E>(x);
    if (!std::isnan(x)) ExpectValueOfStochastic<E>(x);
  }
  for (uint64_t bits = 0; bits <= ToU32(E::Max()) + 0x400000u; bits += 1021) {
    ExpectValueOfNearest<E>(FromU32(static_cast<uint32_t>(bits)));
    ExpectValueOfNearest<E>(FromU32(static_cast<uint32_t>(bits) | 0x80000000u));
  }
  for (uint64_t bits = 0; bits <= ToU32(E::Max()); bits += 2000003) {
    ExpectValueOfStochastic<E>(FromU32(static_cast<uint32_t>(bits)));
  }
  // The distance to the next value is less than a sum's last place: the adder rounds up.
  for (int code = 0; code < 4; ++code) {
    const double step = grid.value[code + 1] - grid.value[code];
    for (int random = 1; random < 256; random += 6) {
      for (int places = 18; places < 34; ++places) {
        ExpectValueOfStochastic<E>(static_cast<float>(grid.value[code + 1] - random / 256.0 * step -
                                                      std::ldexp(step, -places)));
      }
    }
  }
}

TEST(E2M1, RoundingWithoutCodesGivesTheSameValues) { ExpectValuesWithoutCodes<E2M1>(E2M1Grid()); }
TEST(E4M3, RoundingWithoutCodesGivesTheSameValues) { ExpectValuesWithoutCodes<E4M3>(E4M3Grid()); }
TEST(E5M2, RoundingWithoutCodesGivesTheSameValues) { ExpectValuesWithoutCodes<E5M2>(E5M2Grid()); }

TEST(E2M1, CodesDecodeToTheirValues) { ExpectCodesStandForTheirValues<E2M1>(E2M1Grid()); }
TEST(E4M3, CodesDecodeToTheirValues) { ExpectCodesStandForTheirValues<E4M3>(E4M3Grid()); }
TEST(E5M2, CodesDecodeToTheirValues) { ExpectCodesStandForTheirValues<E5M2>(E5M2Grid()); }

TEST(E2M1, RoundsToTheNearestValueAndTiesToTheEvenCode) {
  ExpectNearestEverywhere<E2M1>(E2M1Grid());
}
TEST(E4M3, RoundsToTheNearestValueAndTiesToTheEvenCode) {
  ExpectNearestEverywhere<E4M3>(E4M3Grid());
}
TEST(E5M2, RoundsToTheNearestValueAndTiesToTheEvenCode) {
  ExpectNearestEverywhere<E5M2>(E5M2Grid());
}

TEST(E2M1, StochasticRoundingAddsAFractionOfTheStepAndRoundsDown) {
  ExpectStochasticEverywhere<E2M1>(E2M1Grid());
}
TEST(E4M3, StochasticRoundingAddsAFractionOfTheStepAndRoundsDown) {
  ExpectStochasticEverywhere<E4M3>(E4M3Grid());
}
TEST(E5M2, StochasticRoundingAddsAFractionOfTheStepAndRoundsDown) {
  ExpectStochasticEverywhere<E5M2>(E5M2Grid());
}

TEST(E2M1, TiesGoToTheEvenCode) {
  const float tie[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const uint32_t at[] = {0, 2, 2, 4, 4, 6, 6};
  for (uint32_t i = 0; i < 7; ++i) {
    EXPECT_EQ(E2M1::Encode(tie[i]), at[i]) << tie[i];
    EXPECT_EQ(E2M1::Encode(std::nextafter(tie[i], 0.0f)), i);
    EXPECT_EQ(E2M1::Encode(std::nextafter(tie[i], kInf)), i + 1);
  }
}

TEST(E2M1, NanIsPlusSixAndInfinitiesSaturate) {
  EXPECT_EQ(E2M1::Encode(std::nanf("")), 0x7u);
  EXPECT_EQ(E2M1::Encode(-std::nanf("")), 0x7u);
  EXPECT_EQ(E2M1::Encode(kInf), 0x7u);
  EXPECT_EQ(E2M1::Encode(-kInf), 0xfu);
  EXPECT_EQ(E2M1::Encode(-0.0f), 0x8u);
}

TEST(E4M3, PublishedCases) {
  EXPECT_EQ(E4M3::Encode(0x1p-10f), 0x00u);
  EXPECT_EQ(E4M3::Encode(std::nextafter(0x1p-10f, 1.0f)), 0x01u);
  EXPECT_EQ(E4M3::Encode(0x1p-9f), 0x01u);
  EXPECT_EQ(E4M3::Encode(3 * 0x1p-10f), 0x02u);
  EXPECT_EQ(E4M3::Encode(0x1p-6f), 0x08u);
  EXPECT_EQ(E4M3::Encode(1.0625f), 0x38u);
  EXPECT_EQ(E4M3::Encode(1.1875f), 0x3au);
  EXPECT_EQ(E4M3::Encode(17), 0x58u);
  EXPECT_EQ(E4M3::Encode(19), 0x5au);
  EXPECT_EQ(E4M3::Encode(232), 0x76u);
  EXPECT_EQ(E4M3::Encode(432), 0x7eu);
  for (const float x : {448.0f, 449.0f, 480.0f, 1e30f, FLT_MAX, kInf}) {
    EXPECT_EQ(E4M3::Encode(x), 0x7eu) << x;
    EXPECT_EQ(E4M3::Encode(-x), 0xfeu) << x;
  }
  EXPECT_EQ(E4M3::Encode(std::nanf("")), 0x7fu);
}

TEST(E5M2, SaturatesInsteadOfBecomingInfinite) {
  for (const float x : {57344.0f, 61440.0f, 65536.0f, FLT_MAX, kInf}) {
    EXPECT_EQ(E5M2::Encode(x), 0x7bu) << x;
    EXPECT_EQ(E5M2::Encode(-x), 0xfbu) << x;
  }
}

TEST(E2M1, PublishedStochasticCases) {
  struct Case {
    float x;
    float expected[5];  // with random bytes 00 40 80 c0 ff
  };
  const Case cases[] = {
      {0, {0, 0, 0, 0, 0}},
      {0.1f, {0, 0, 0, 0, 0.5f}},
      {0.25f, {0, 0, 0.5f, 0.5f, 0.5f}},
      {0.49f, {0, 0.5f, 0.5f, 0.5f, 0.5f}},
      {0.5f, {0.5f, 0.5f, 0.5f, 0.5f, 0.5f}},
      {0.6f, {0.5f, 0.5f, 0.5f, 0.5f, 1}},
      {1.9f, {1.5f, 2, 2, 2, 2}},
      {1.99f, {1.5f, 2, 2, 2, 2}},
      {2, {2, 2, 2, 2, 2}},
      {2.4f, {2, 2, 2, 3, 3}},
      {2.9f, {2, 3, 3, 3, 3}},
      {3.9f, {3, 4, 4, 4, 4}},
      {4, {4, 4, 4, 4, 4}},
      {4.5f, {4, 4, 4, 6, 6}},
      {5, {4, 4, 6, 6, 6}},
      {5.99f, {4, 6, 6, 6, 6}},
      {6, {6, 6, 6, 6, 6}},
      {7, {6, 6, 6, 6, 6}},
      {-0.3f, {-0.0f, -0.0f, -0.5f, -0.5f, -0.5f}},
      {-2.5f, {-2, -2, -3, -3, -3}},
      {-5.5f, {-4, -6, -6, -6, -6}},
      {std::nanf(""), {6, 6, 6, 6, 6}},
      {-kInf, {-6, -6, -6, -6, -6}},
      {-0.0f, {-0.0f, -0.0f, -0.0f, -0.0f, -0.0f}},
  };
  const uint32_t random[] = {0x00, 0x40, 0x80, 0xc0, 0xff};
  for (const Case& c : cases) {
    for (int i = 0; i < 5; ++i) {
      const float got = E2M1::Decode<float>(E2M1::EncodeStochastic(c.x, random[i]));
      EXPECT_EQ(ToU32(got), ToU32(c.expected[i])) << c.x << " with " << random[i];
    }
  }
}

double Bf16Value(uint32_t code) {
  const int field = code >> 7 & 0xff;
  const int mantissa = code & 0x7f;
  return field == 0 ? std::ldexp(mantissa, -133) : std::ldexp(mantissa + 128, field - 134);
}

TEST(Bf16, EveryCodeDecodesToItsValueAndNanStaysNan) {
  for (uint32_t code = 0; code < 0x10000; ++code) {
    const float x = DecodeBf16(static_cast<uint16_t>(code));
    if ((code & 0x7fff) > 0x7f80) {
      EXPECT_TRUE(std::isnan(x)) << code;
      EXPECT_TRUE(std::isnan(DecodeBf16(EncodeBf16(x)))) << code;
      continue;
    }
    EXPECT_EQ(EncodeBf16(x), code);
    EXPECT_EQ(std::signbit(x), code >> 15 == 1);
    if ((code & 0x7fff) == 0x7f80) {
      EXPECT_TRUE(std::isinf(x));
    } else {
      EXPECT_EQ(std::fabs(static_cast<double>(x)), Bf16Value(code & 0x7fff)) << code;
    }
  }
}

// Infinity counts as 2^128 here, as IEEE 754 rounds.
TEST(Bf16, RoundsToTheNearestValueAndTiesToTheEvenCode) {
  for (uint32_t code = 0; code < 0x7f80; ++code) {
    const float middle = static_cast<float>((Bf16Value(code) + Bf16Value(code + 1)) / 2);
    for (const uint32_t sign : {0u, 0x8000u}) {
      const float s = sign ? -1.0f : 1.0f;
      EXPECT_EQ(EncodeBf16(s * middle), (code + code % 2) | sign) << code;
      EXPECT_EQ(EncodeBf16(s * std::nextafter(middle, 0.0f)), code | sign);
      EXPECT_EQ(EncodeBf16(s * std::nextafter(middle, kInf)), (code + 1) | sign);
      EXPECT_EQ(EncodeBf16(s * std::nextafter(static_cast<float>(Bf16Value(code)), kInf)),
                code | sign);
    }
  }
  EXPECT_EQ(EncodeBf16(FLT_MAX), 0x7f80);
}

// Every 1021st pattern in the domain, and every tie and BF16 number in it with their neighbours.
TEST(Bf16, TheShortRoundingOfNormalNumbersGivesTheSameBits) {
  const auto expect = [](uint32_t bits) {
    for (const uint32_t x : {bits, bits | 0x80000000u}) {
      const float rounded = RoundNormalToBf16<float>(FromU32(x));
      ASSERT_EQ(ToU32(rounded), RoundNumberToBf16Bits<float>(FromU32(x))) << std::hex << x;
    }
    using F4 = LaneVector<4>::F;
    const F4 four = RoundNormalToBf16<F4>(F4{FromU32(bits), 1.0f, -1.0f, 0.0f});
    ASSERT_EQ(ToU32(four[0]), RoundNumberToBf16Bits<float>(FromU32(bits)));
  };
  constexpr uint32_t kLeast = 1u << 23, kMost = (127u + 110u) << 23;
  for (uint32_t bits = kLeast; bits <= kMost; bits += 1021) expect(bits);
  for (uint32_t bits = kLeast + 0x8000u; bits < kMost; bits += 0x8000u) {
    for (const uint32_t near : {bits - 1, bits, bits + 1}) expect(near);
  }
  // Smaller numbers are returned unchanged.
  for (const uint32_t bits : {0u, 1u, 0x7fffffu}) {
    EXPECT_EQ(RoundNormalToBf16<float>(FromU32(bits)), FromU32(bits));
  }
}

TEST(E8M0, LanesGiveTheScalarResult) {
  using F4 = LaneVector<4>::F;
  using U4 = LaneVector<4>::U;
  for (uint64_t bits = 0; bits <= 0x7f800000u; bits += 40013) {
    const uint32_t amax = static_cast<uint32_t>(bits);
    const U4 codes = E8M0::EncodeRoundedUp<E4M3, F4>(U4{amax, 0, 0x7f800000u, amax});
    EXPECT_EQ(codes[0], E8M0::EncodeRoundedUp<E4M3>(amax)) << amax;
    EXPECT_EQ(codes[1], E8M0::EncodeRoundedUp<E4M3>(0));
    EXPECT_EQ(codes[2], E8M0::EncodeRoundedUp<E4M3>(0x7f800000u));
    EXPECT_EQ(E8M0::Decode<F4>(codes)[3], E8M0::Decode(codes[3]));
    EXPECT_EQ(E8M0::Reciprocal<F4>(codes)[3], E8M0::Reciprocal(codes[3]));
  }
}

TEST(E8M0, CodesArePowersOfTwoAndReciprocalsAreExact) {
  for (int code = 0; code < 255; ++code) {
    EXPECT_EQ(E8M0::Decode(code), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(E8M0::Reciprocal(code), std::ldexp(1.0, 127 - code)) << code;
  }
}

// The smallest code whose power of two times `max` reaches amax; infinity counts as 2^128.
int RoundedUp(float amax, double max) {
  const double target = std::isinf(amax) ? 0x1p128 : static_cast<double>(amax);
  int code = 0;
  while (std::ldexp(max, code - 127) < target) ++code;
  return code;
}

TEST(E8M0, RoundsUpToTheSmallestPowerThatDoesNotSaturate) {
  std::vector<float> amax = {
      0.0f, FLT_MAX, kInf, FLT_MIN, FLT_TRUE_MIN, 2 * FLT_TRUE_MIN, std::nextafter(FLT_MIN, 0.0f)};
  for (int k = -160; k < 128; ++k) {
    for (const double max : {6.0, 448.0, 1.0, 1.5, 1.75}) {
      if (std::ldexp(max, k) > FLT_MAX) continue;
      const float x = static_cast<float>(std::ldexp(max, k));
      amax.insert(amax.end(), {x, std::nextafter(x, kInf), std::nextafter(x, 0.0f)});
    }
  }
  for (uint64_t bits = 0; bits <= 0x7f800000u; bits += 20011) amax.push_back(FromU32(bits));
  for (const float x : amax) {
    const uint32_t bits = ToU32(x);
    ASSERT_EQ(E8M0::EncodeRoundedUp<E2M1>(bits), static_cast<uint32_t>(RoundedUp(x, 6))) << x;
    ASSERT_EQ(E8M0::EncodeRoundedUp<E4M3>(bits), static_cast<uint32_t>(RoundedUp(x, 448))) << x;
  }
}

}  // namespace
}  // namespace nibble
