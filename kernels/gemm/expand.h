// Converts the packed form of a quantised copy (codes and scales, in host memory) to numbers.
//
// Ownership: borrows everything. Thread-safety: pure, apart from `out`; a pool is used as
// ParallelFor requires, and may be null (the calling thread does all the work). Results do not
// depend on the threads.
#ifndef NIBBLE_KERNELS_GEMM_EXPAND_H_
#define NIBBLE_KERNELS_GEMM_EXPAND_H_

#include <cstdint>

#include "absl/status/status.h"
#include "common/thread_pool.h"
#include "kernels/tensor/quantized_tensor.h"

namespace nibble {

// All of them write out: [copy_rows, copy_cols], and return FailedPrecondition for a copy without
// its packed form.

// The BF16 operand of emulation: the same bits that quantising writes to
// QuantizedTensor::emulated().
absl::Status ExpandOperand(const QuantizedTensor& tensor, ThreadPool* pool, uint16_t* out);
// The same, widened to FP32.
absl::Status ExpandOperand(const QuantizedTensor& tensor, ThreadPool* pool, float* out);

// The values of the copy: code · Nvfp4::DecodeFactor(scale, amax) for nvfp4, code · scale for other
// formats. For a Hadamard-transformed copy, the transformed values.
absl::Status Dequantize(const QuantizedTensor& tensor, ThreadPool* pool, float* out);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_GEMM_EXPAND_H_
