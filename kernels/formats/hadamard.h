// The random Hadamard transform of n = 2..128 values: y_j = n^-1/2 · Σ_i sign_i · x_i ·
// (-1)^popcount(i&j). Inputs BF16, sums FP32 as butterflies of growing stride, result rounded to
// BF16.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_FORMATS_HADAMARD_H_
#define NIBBLE_KERNELS_FORMATS_HADAMARD_H_

#include <cstdint>

#include "kernels/formats/bfloat16.h"
#include "kernels/formats/lanes.h"

namespace nibble {

// Bit i set: sign of x_i is negative.
struct SignMask {
  uint32_t word[4] = {0, 0, 0, 0};

  NIBBLE_LANES uint32_t Bit(int i) const { return (word[i >> 5] >> (i & 31)) & 1u; }
  friend bool operator==(const SignMask&, const SignMask&) = default;
};

// The paper's vector, + + + - + - - - - - - + - + - -, repeated for sizes above 16.
inline constexpr SignMask kDefaultSigns = {{0xd7e8d7e8u, 0xd7e8d7e8u, 0xd7e8d7e8u, 0xd7e8d7e8u}};

// fp32(n^-1/2); exact for 4, 16 and 64.
NIBBLE_LANES float HadamardNorm(int n) {
  switch (n) {
    case 2:
      return BitCast<float>(0x3f3504f3u);
    case 4:
      return 0.5f;
    case 8:
      return BitCast<float>(0x3eb504f3u);
    case 16:
      return 0.25f;
    case 32:
      return BitCast<float>(0x3e3504f3u);
    case 64:
      return 0.125f;
    default:
      return BitCast<float>(0x3db504f3u);
  }
}

// In place on x[0], x[stride], …: n values that are exact in BF16. Each F is one value, or lanes of
// independent transforms.
template <class F>
NIBBLE_LANES void HadamardBf16(F* x, int n, int stride, const SignMask& signs) {
  for (int i = 0; i < n; ++i) {
    x[i * stride] = FromBits<F>(BitsOf<F>(x[i * stride]) ^ (signs.Bit(i) << 31));
  }
  for (int half = 1; half < n; half *= 2) {
    for (int base = 0; base < n; base += 2 * half) {
      for (int i = base; i < base + half; ++i) {
        const F a = x[i * stride];
        const F b = x[(i + half) * stride];
        x[i * stride] = a + b;
        x[(i + half) * stride] = a - b;
      }
    }
  }
  const float norm = HadamardNorm(n);
  for (int i = 0; i < n; ++i) {
    x[i * stride] = FromBits<F>(RoundToBf16Bits<F>(x[i * stride] * norm));
  }
}

// The sums of the same transform for tiles of 16 in registers, before norm and rounding: all bounds
// are constants, so that all loops unroll. `sign_bits`: 0 or 0x80000000 per element.
template <class F>
NIBBLE_LANES void HadamardSumsTile16(F (&x)[16], const uint32_t* sign_bits) {
  NIBBLE_UNROLL(16)
  for (int i = 0; i < 16; ++i) x[i] = FromBits<F>(BitsOf<F>(x[i]) ^ sign_bits[i]);
  NIBBLE_UNROLL(4)
  for (int log = 0; log < 4; ++log) {
    const int half = 1 << log;
    NIBBLE_UNROLL(16)
    for (int i = 0; i < 16; ++i) {
      if (i & half) continue;
      const F a = x[i];
      const F b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_HADAMARD_H_
