// The readable quantiser: one element at a time, directly from the formulas, for every format, with
// NaN and infinities. It is the oracle of the tests, and does the patches that the lane kernels
// return (non-finite numbers) or cannot take (ragged ends of tensor-wide blocks).
//
// Ownership: borrows all pointers. Thread-safety: pure, apart from the memory written.
#ifndef NIBBLE_KERNELS_CPU_REFERENCE_H_
#define NIBBLE_KERNELS_CPU_REFERENCE_H_

#include <cstdint>

#include "kernels/cpu/lane_kernels.h"

namespace nibble::cpu {

// The result of the amax pass for a patch: NaN is skipped and counted.
struct AmaxResult {
  uint32_t amax_bits = 0;
  uint64_t non_finite = 0;
};
// With x.hadamard16, for the transformed values. `columns`: the transform runs along the rows.
AmaxResult ReferenceAmax(const Patch& x, bool columns);

// Like LaneKernels::group_amax_*, but skips NaN; groups may be ragged at the end.
AmaxResult ReferenceGroupAmax(const Patch& x, bool columns, float* out, int64_t stride);

// Like LaneKernels::encode_*; groups may be ragged at the end (with nearest rounding).
void ReferenceEncode(const EncodeArgs& args, bool columns);

}  // namespace nibble::cpu

#endif  // NIBBLE_KERNELS_CPU_REFERENCE_H_
