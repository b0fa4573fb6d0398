// Precision statistics of one quantised copy, as sums that do not depend on the order of additions:
// each group of 16 elements gives FP32 sums in element order, which are split into two integers and
// added as integers. CPU and GPU, any number of threads, any instruction set: the same bits.
//
// Magnitudes are first scaled by the power of two that brings the tensor's amax into [1, 2), so a
// group's sum is below 64 and its integer parts have fixed units of 2^-24 and 2^-55.
//
// Thread-safety: plain data; the thread that adds to one owns it.
#ifndef NIBBLE_KERNELS_FORMATS_STATISTICS_H_
#define NIBBLE_KERNELS_FORMATS_STATISTICS_H_

#include <cstdint>

#include "kernels/formats/lanes.h"

namespace nibble {

// Raw sums; Finish (kernels/tensor/quant_stats.h) converts them to readable figures.
struct StatSums {
  uint64_t error_coarse = 0;   // Σ(x - x̂)², unit 2^-24 (normalised)
  uint64_t error_fine = 0;     // remainder of the coarse part, unit 2^-55
  uint64_t square_coarse = 0;  // Σx², same units
  uint64_t square_fine = 0;
  uint64_t nonzero = 0;
  uint64_t underflow = 0;            // non-zero values that became zero
  uint64_t clipped = 0;              // values beyond the element's maximum after scaling
  uint64_t min_scale = 0xffffffffu;  // FP32 bits of the smallest non-zero block scale
  uint64_t max_scale = 0;            // FP32 bits of the largest block scale

  friend bool operator==(const StatSums&, const StatSums&) = default;
};

// 2^-exponent of the larger of `largest` (the tensor's largest |x|) and `amax` (the value that the
// scales were computed from; the same unless given by the caller), and amax in that unit. Zero if
// that is not finite: every sum is then zero and the non-finite count shows it.
struct StatNorm {
  float factor;
  float amax;
};
NIBBLE_LANES StatNorm StatNormFor(float largest, float amax) {
  const uint32_t exponent = MaxBits<uint32_t>(BitsOf<float>(largest), BitsOf<float>(amax)) >> 23;
  if (exponent >= 255) return {0.0f, 0.0f};
  // 2^126 at most; 2^-127 at least, which is subnormal but exact.
  const uint32_t inverse = exponent == 0 ? 253u : 254u - exponent;
  const float factor = FromBits<float>(inverse == 0 ? 0x00400000u : inverse << 23);
  return {factor, amax * factor};
}
NIBBLE_LANES StatNorm StatNormFor(float amax) { return StatNormFor(amax, amax); }

// A group's sum in its two integer units.
template <class F>
struct SplitSum {
  LaneI<F> coarse;
  LaneI<F> fine;
};
template <class F>
NIBBLE_LANES SplitSum<F> SplitGroupSum(F sum) {
  using U = LaneU<F>;
  // Only an amax below the data's maximum can reach the bound of 64.
  const F bounded = FromBits<F>(MinBits<U>(BitsOf<F>(sum), SplatBits<U>(0x427fffffu)));
  const F scaled = bounded * 16777216.0f;
  const LaneI<F> coarse = Truncate<F>(scaled);
  const F rest = (scaled - ToFloat<F>(coarse)) * 2147483648.0f;
  return {coarse, Truncate<F>(rest)};
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_FORMATS_STATISTICS_H_
