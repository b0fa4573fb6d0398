#include "kernels/formats/initial_values.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>

#include "kernels/formats/portable_math.h"

namespace nibble {
namespace {

// Units in the last place of the exact value.
double Ulps(double value, long double exact) {
  const double size = std::abs(static_cast<double>(exact));
  const double unit = std::nextafter(size, INFINITY) - size;
  return static_cast<double>(std::abs(static_cast<long double>(value) - exact)) / unit;
}

TEST(PortableMath, IsWithinTwoUnitsInTheLastPlace) {
  std::mt19937_64 random(1);
  double log = 0, exp = 0, one_minus_exp = 0, turn = 0;
  for (int i = 0; i < 200000; ++i) {
    const double u = (static_cast<double>(random() >> 32) + 0.5) * 0x1p-32;
    log = std::max(log, Ulps(portable::Log(u), std::log(static_cast<long double>(u))));
    const double wide = 1.0 + 15.0 * u;
    log = std::max(log, Ulps(portable::Log(wide), std::log(static_cast<long double>(wide))));
    const double x = -10.0 + 20.0 * u;
    exp = std::max(exp, Ulps(portable::Exp(x), std::exp(static_cast<long double>(x))));
    const double small = 0.25 * u;
    one_minus_exp = std::max(one_minus_exp, Ulps(portable::OneMinusExp(small),
                                                 -std::expm1(-static_cast<long double>(small))));
    const long double angle = 2.0L * 3.14159265358979323846264338327950288L * u;
    const portable::CosSin at = portable::Turn(u);
    // Absolute where a factor near a zero makes the angle's own rounding dominate.
    turn = std::max<double>(turn, std::abs(static_cast<double>(at.cos - std::cos(angle))));
    turn = std::max<double>(turn, std::abs(static_cast<double>(at.sin - std::sin(angle))));
  }
  EXPECT_LT(log, 2);
  EXPECT_LT(exp, 2);
  EXPECT_LT(one_minus_exp, 2);
  EXPECT_LT(turn, 3e-16);
}

TEST(PortableMath, KnownValuesKeepTheirBits) {
  EXPECT_EQ(portable::Log(1.0), 0.0);
  EXPECT_EQ(portable::Exp(0.0), 1.0);
  EXPECT_EQ(portable::Turn(0.0).cos, 1.0);
  EXPECT_EQ(portable::Turn(0.0).sin, 0.0);
  EXPECT_EQ(portable::Turn(0.25).sin, 1.0);
  EXPECT_EQ(portable::Turn(1.0).cos, 1.0);
}

// The bits that every backend gives, as first computed here: a change of the formula is a change of
// every run.
TEST(InitialValues, FirstValuesOfAStreamKeepTheirBits) {
  const RandomStream random = {.seed = 7, .stream = 11, .step = kInitialStep};
  float out[4];
  uint32_t hash = 0;
  for (uint64_t block = 0; block < 1000; ++block) {
    const FourUniform draw = InitialDraw(random, block);
    const auto add = [&] {
      for (const float x : out) hash = hash * 31 + std::bit_cast<uint32_t>(x);
    };
    InitialNormal(draw, 0.02, out);
    add();
    InitialUniform(draw, 0.5, out);
    add();
    InitialMambaDt(draw, out);
    add();
    InitialMambaDecay(draw, out);
    add();
  }
  EXPECT_EQ(hash, 1941922795u);
}

}  // namespace
}  // namespace nibble
