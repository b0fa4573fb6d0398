// Readable precision figures of a quantised copy (per layer and operand, sampled).
//
// Thread-safety: pure.
#ifndef NIBBLE_KERNELS_TENSOR_QUANT_STATS_H_
#define NIBBLE_KERNELS_TENSOR_QUANT_STATS_H_

#include <cstdint>

#include "kernels/tensor/quantized_tensor.h"

namespace nibble {

struct QuantStats {
  double relative_error;  // ‖x − x̂‖ / ‖x‖; 0 for a tensor of zeros, NaN if amax is infinite
  double snr_db;          // −20 log10 of it; +inf for an exact copy
  double relative_mse;          // its square
  double underflow;             // fraction of the non-zero values that became zero
  double clipped;               // fraction of all values beyond the largest code
  double scale_spread_octaves;  // log2 of the largest over the smallest non-zero block scale
  float amax;
  uint64_t non_finite;
};

// Adds the sums of another part of a tensor, quantised with the same amax: those of both parts, in
// any order.
void Merge(const StatSums& part, StatSums& sums);

QuantStats Finish(const QuantHead& head, int64_t elements);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_TENSOR_QUANT_STATS_H_
