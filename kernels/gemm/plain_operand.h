// How an engine reads an operand as a plain matrix, of BF16 or FP32 values without block scales:
// the matrix itself, the emulation of a quantised copy, or a conversion of either.
//
// Ownership: borrows the operand's data. Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_GEMM_PLAIN_OPERAND_H_
#define NIBBLE_KERNELS_GEMM_PLAIN_OPERAND_H_

#include <cstdint>

#include "kernels/gemm/gemm.h"
#include "kernels/tensor/matrix.h"

namespace nibble {

struct PlainOperand {
  // As stored: [rows, cols], which is the source or its transpose, rows `stride` elements apart.
  int64_t rows = 0, cols = 0, stride = 0;
  bool k_major = true;  // the sum runs along the rows
  // Whether `data` is in the requested type. If not, the operand is converted to a dense
  // [rows, cols]: `bf16` is widened or, if that is null, the codes are expanded.
  bool is_ready = false;
  const void* data = nullptr;
  const uint16_t* bf16 = nullptr;
};

// `dtype`: BF16 or FP32; FP32 if the operand is an FP32 matrix.
PlainOperand PlainOf(const GemmOperand& operand, DType dtype);

}  // namespace nibble

#endif  // NIBBLE_KERNELS_GEMM_PLAIN_OPERAND_H_
