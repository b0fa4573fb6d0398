// The initial values of parameters: four at a time from one draw, as functions of the seed, the
// parameter and the element, with the same bits on every backend.
//
// For code compiled without contraction into fused multiply-add. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_INITIAL_VALUES_H_
#define NIBBLE_KERNELS_FORMATS_INITIAL_VALUES_H_

#include <cmath>
#include <cstdint>

#include "kernels/formats/lanes.h"
#include "kernels/formats/philox.h"
#include "kernels/formats/portable_math.h"

namespace nibble {

// Separates these draws from those of rounding, whose step counts from 0.
inline constexpr uint32_t kInitialStep = 0xffffffffu;

struct FourUniform {
  double u[4];  // in (0, 1): never 0, so that the logarithm is finite
};

// Elements 4·block … 4·block + 3.
NIBBLE_LANES FourUniform InitialDraw(const RandomStream& random, uint64_t block) {
  const PhiloxWords<uint32_t> bits = RoundingBits<uint32_t>(random, static_cast<uint32_t>(block),
                                                            static_cast<uint32_t>(block >> 32));
  FourUniform draw;
  NIBBLE_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    draw.u[i] = (static_cast<double>(bits.word[i]) + 0.5) * 0x1p-32;
  }
  return draw;
}

// Values of each kind, from their draw. out: [4]
// N(0, scale²), two at a time by Box and Muller.
NIBBLE_LANES void InitialNormal(const FourUniform& draw, double scale, float* out) {
  NIBBLE_UNROLL(2)
  for (int i = 0; i < 4; i += 2) {
    const double radius = scale * sqrt(-2.0 * portable::Log(draw.u[i]));
    const portable::CosSin turn = portable::Turn(draw.u[i + 1]);
    out[i] = static_cast<float>(radius * turn.cos);
    out[i + 1] = static_cast<float>(radius * turn.sin);
  }
}

// U(−scale, scale).
NIBBLE_LANES void InitialUniform(const FourUniform& draw, double scale, float* out) {
  NIBBLE_UNROLL(4)
  for (int i = 0; i < 4; ++i) out[i] = static_cast<float>(scale * (2.0 * draw.u[i] - 1.0));
}

// softplus⁻¹ of exp U(ln 1e-3, ln 0.1), at least 1e-4.
NIBBLE_LANES void InitialMambaDt(const FourUniform& draw, float* out) {
  constexpr double kLow = -0x1.ba18a998fffa0p2;  // ln 1e-3
  constexpr double kSpan = 0x1.26bb1bbb55516p2;  // ln 0.1 − ln 1e-3
  NIBBLE_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const double drawn = portable::Exp(kLow + draw.u[i] * kSpan);
    const double dt = drawn > 1e-4 ? drawn : 1e-4;
    out[i] = static_cast<float>(dt + portable::Log(portable::OneMinusExp(dt)));
  }
}

// ln U(1, 16).
NIBBLE_LANES void InitialMambaDecay(const FourUniform& draw, float* out) {
  NIBBLE_UNROLL(4)
  for (int i = 0; i < 4; ++i) out[i] = static_cast<float>(portable::Log(1.0 + 15.0 * draw.u[i]));
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_INITIAL_VALUES_H_
