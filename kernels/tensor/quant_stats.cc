#include "kernels/tensor/quant_stats.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/formats/lanes.h"

namespace nibble {
namespace {

double Sum(uint64_t coarse, uint64_t fine) {
  return std::ldexp(static_cast<double>(coarse), -24) + std::ldexp(static_cast<double>(fine), -55);
}

double Ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void Merge(const StatSums& part, StatSums& sums) {
  sums.error_coarse += part.error_coarse;
  sums.error_fine += part.error_fine;
  sums.square_coarse += part.square_coarse;
  sums.square_fine += part.square_fine;
  sums.nonzero += part.nonzero;
  sums.underflow += part.underflow;
  sums.clipped += part.clipped;
  sums.min_scale = std::min(sums.min_scale, part.min_scale);
  sums.max_scale = std::max(sums.max_scale, part.max_scale);
}

QuantStats Finish(const QuantHead& head, int64_t elements) {
  const StatSums& sums = head.stats;
  const double error = Sum(sums.error_coarse, sums.error_fine);
  const double square = Sum(sums.square_coarse, sums.square_fine);
  QuantStats stats;
  if (!std::isfinite(head.amax)) {
    stats.relative_mse = std::numeric_limits<double>::quiet_NaN();
  } else {
    stats.relative_mse = square == 0 ? 0.0 : error / square;
  }
  stats.relative_error = std::sqrt(stats.relative_mse);
  stats.snr_db = -10.0 * std::log10(stats.relative_mse);
  stats.underflow = Ratio(sums.underflow, sums.nonzero);
  stats.clipped = Ratio(sums.clipped, static_cast<uint64_t>(elements));
  stats.scale_spread_octaves =
      sums.max_scale == 0 ? 0.0
                          : std::log2(BitCast<float>(static_cast<uint32_t>(sums.max_scale))) -
                                std::log2(BitCast<float>(static_cast<uint32_t>(sums.min_scale)));
  stats.amax = head.amax;
  stats.non_finite = head.non_finite;
  return stats;
}

}  // namespace nibble
