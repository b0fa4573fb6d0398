// A request to quantise one matrix: into a row copy, a column copy, or both.
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
  // The tensor's amax if its producer has computed it (in the backend's memory). Null: this call
  // computes it, in a separate pass if the format's scales depend on it. It is the amax of the
  // values that are quantised: after the Hadamard transform, if any.
  const float* amax = nullptr;
  // Identifies the random bits; used with stochastic rounding only.
  RandomStream random;
  // The step of the random bits, in the backend's memory: read when the operation runs, in place of
  // random.step, so that a recorded sequence of operations (a CUDA graph) draws other bits each
  // time it is replayed. Its low 32 bits count. Null: random.step.
  const uint64_t* step = nullptr;
  // Fills QuantHead::stats. Needs amax before the quantising pass, in every format.
  bool statistics = false;
  // The largest |x|, if `amax` was chosen smaller: sums of squares are kept in units of it and
  // saturate beyond it. Null: `amax`, or the one computed.
  const float* statistics_amax = nullptr;
};

// The source's position in the unsharded tensor, so that random bits do not depend on sharding. All
// zero: the source is the whole tensor.
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
  // Quantises the squared ReLU of x, rounded to BF16, which is then never stored. x is BF16; only
  // of a backend that does so (Backend::QuantizesSquaredRelu).
  bool squared_relu = false;
};

// Checks that shapes, orientations and placement agree, and that a copy is requested; every backend
// calls it first. InvalidArgument names the copy, the field and both values.
absl::Status Validate(const QuantizeRequest& request);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_OPS_QUANTIZE_H_
