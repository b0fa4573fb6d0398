// What a backend is asked when it quantises: from one matrix, a row copy, a column copy, or both.
//
// Ownership: everything pointed to is borrowed until the operation has run.
// Thread-safety: values.
#ifndef NIBBLE_KERNELS_OPS_QUANTIZE_H_
#define NIBBLE_KERNELS_OPS_QUANTIZE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/formats/philox.h"
#include "kernels/tensor/matrix.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble {

struct CopyRequest {
  QuantizedTensor* out = nullptr;  // null: this copy is not wanted
  // The tensor's amax where its producer already knows it (in the backend's memory); null: this
  // call takes it, in a pass of its own where the format's scales depend on it. It is the amax of
  // what is quantised: after the Hadamard transform where there is one.
  const float* amax = nullptr;
  // Names the random bits; used with stochastic rounding only.
  RandomStream random;
  // Fills QuantHead::stats. They need amax before the quantising pass, in every format.
  bool statistics = false;
  // The largest |x| there is, where `amax` was chosen smaller than that: sums of squares are kept
  // in units of it and saturate beyond. Null: `amax` (or the one found) serves.
  const float* statistics_amax = nullptr;
};

// Where the source sits in the unsharded tensor, so that random bits do not depend on sharding.
// Zeros stand for "it is the whole tensor".
struct Placement {
  int64_t first_row = 0;
  int64_t first_col = 0;
  int64_t global_rows = 0;
  int64_t global_cols = 0;
};

struct QuantizeRequest {
  ConstMatrix x;
  Placement placement;
  CopyRequest row;
  CopyRequest column;
};

// Shapes, orientations and placement agree, and something is asked for; every backend calls it
// first. InvalidArgument names the copy, the field and both values.
absl::Status Validate(const QuantizeRequest& request);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_QUANTIZE_H_
