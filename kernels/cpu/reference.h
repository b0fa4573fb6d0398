// The readable quantiser: one element at a time, straight from the formulas, every format, NaN and
// infinities included. It is the oracle of the tests, and does the patches that the lane kernels
// hand back (bad numbers) or do not take (ragged ends of tensor-wide blocks).
//
// Ownership: borrows all pointers. Thread-safety: pure, but for the memory written.
#ifndef NIBBLE_KERNELS_CPU_REFERENCE_H_
#define NIBBLE_KERNELS_CPU_REFERENCE_H_

#include <cstdint>

#include "kernels/cpu/lane_kernels.h"

namespace nibble::cpu {

// What the amax pass learns from a patch: NaN is left out of amax and counted.
struct AmaxResult {
  uint32_t amax_bits = 0;
  uint64_t non_finite = 0;
};
// With x.hadamard16, of the transformed values. `columns`: the transform runs along the rows.
AmaxResult ReferenceAmax(const Patch& x, bool columns);

// Like LaneKernels::group_amax_*, NaN left out; groups may be ragged at the end.
AmaxResult ReferenceGroupAmax(const Patch& x, bool columns, float* out, int64_t stride);

// Like LaneKernels::encode_*; groups may be ragged at the end (with nearest rounding).
void ReferenceEncode(const EncodeArgs& args, bool columns);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_REFERENCE_H_
