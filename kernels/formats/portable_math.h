// Elementary functions in FP64 that have the same bits on every processor: made of additions,
// multiplications and divisions, each rounded once, in one order. Libraries' functions differ in
// the last bit. Errors are below two units in the last place.
//
// For code compiled without contraction into fused multiply-add. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_PORTABLE_MATH_H_
#define NIBBLE_KERNELS_FORMATS_PORTABLE_MATH_H_

#include <cstdint>
#include <cstring>

#include "kernels/formats/lanes.h"

namespace nibble::portable {

// ln 2 in two parts; the first has 28 bits, so that its product with a small integer is exact.
inline constexpr double kLn2High = 0x1.62e42fep-1;
inline constexpr double kLn2Low = 0x1.f473de6af278fp-30;
inline constexpr double kHalfPi = 0x1.921fb54442d18p0;

// ln x, for normal x > 0.
NIBBLE_LANES double Log(double x) {
  // x = 2^exponent · m with m in [√½, √2).
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  constexpr uint64_t kOne = uint64_t{1023} << 52;
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcd;  // √½
  const uint64_t shifted = bits - kRootHalf + kOne;
  const auto exponent = static_cast<double>(static_cast<int64_t>(shifted >> 52) - 1023);
  const uint64_t m_bits = (shifted & 0xfffffffffffffu) + kRootHalf;
  double m;
  std::memcpy(&m, &m_bits, sizeof m);
  // ln m = 2 artanh s, s = (m − 1) / (m + 1): 2 (s + s³/3 + s⁵/5 + …), |s| below 0.172.
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double sum = 1.0 / 23.0;
  NIBBLE_UNROLL(11)
  for (int k = 21; k >= 1; k -= 2) sum = sum * z + 1.0 / static_cast<double>(k);
  return exponent * kLn2High + (2.0 * s * sum + exponent * kLn2Low);
}

// eˣ, for |x| below 700.
NIBBLE_LANES double Exp(double x) {
  constexpr double kInverseLn2 = 0x1.71547652b82fep0;
  constexpr double kRound = 0x1.8p52;  // adding and subtracting it rounds to an integer
  const double n = (x * kInverseLn2 + kRound) - kRound;
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1.0;
  // 1 + r (1 + r/2 (1 + r/3 (…))), |r| below 0.35.
  NIBBLE_UNROLL(14)
  for (int k = 14; k >= 1; --k) sum = 1.0 + r * sum / static_cast<double>(k);
  const uint64_t power_bits = static_cast<uint64_t>(static_cast<int64_t>(n) + 1023) << 52;
  double power;
  std::memcpy(&power, &power_bits, sizeof power);
  return sum * power;
}

// 1 − e⁻ˣ, for x in [0, 0.25].
NIBBLE_LANES double OneMinusExp(double x) {
  double sum = 1.0;
  NIBBLE_UNROLL(13)
  for (int k = 14; k >= 2; --k) sum = 1.0 - x * sum / static_cast<double>(k);
  return x * sum;
}

// The cosine and the sine of a full turn's part u, in [0, 1].
struct CosSin {
  double cos, sin;
};
NIBBLE_LANES CosSin Turn(double u) {
  // The nearest quarter turn, and an angle of at most π/4 from it.
  const auto quarter = static_cast<int>(4.0 * u + 0.5);
  const double a = (4.0 * u - static_cast<double>(quarter)) * kHalfPi;
  const double z = a * a;
  double sin = 1.0, cos = 1.0;
  NIBBLE_UNROLL(9)
  for (int k = 18; k >= 2; k -= 2) {
    sin = 1.0 - z * sin / static_cast<double>(k * (k + 1));
    cos = 1.0 - z * cos / static_cast<double>(k * (k - 1));
  }
  sin *= a;
  switch (quarter & 3) {
    case 0:
      return {cos, sin};
    case 1:
      return {-sin, cos};
    case 2:
      return {-cos, -sin};
    default:
      return {sin, -cos};
  }
}

}  // namespace nibble::portable

#endif  // NIBBLE_KERNELS_FORMATS_PORTABLE_MATH_H_
