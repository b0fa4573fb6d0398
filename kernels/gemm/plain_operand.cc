#include "kernels/gemm/plain_operand.h"

#include <utility>

namespace nibble {

PlainOperand PlainOf(const GemmOperand& operand, DType dtype) {
  PlainOperand plain = {.rows = operand.rows(), .cols = operand.cols()};
  bool transposed = false;
  if (operand.is_quantized()) {
    const QuantizedTensor& tensor = operand.quantized();
    transposed = tensor.is_column() && tensor.emulated_layout() != EmulatedLayout::kSource;
    if (transposed) std::swap(plain.rows, plain.cols);
    plain.stride = plain.cols;
    plain.bf16 = tensor.emulated();
    plain.data = plain.bf16;
    plain.is_ready = plain.bf16 != nullptr && dtype == DType::kBf16;
  } else {
    const ConstMatrix& x = operand.matrix();
    plain.stride = x.stride;
    if (x.dtype == DType::kBf16) plain.bf16 = static_cast<const uint16_t*>(x.data);
    plain.data = x.data;
    plain.is_ready = x.dtype == dtype;
  }
  plain.k_major = (operand.contract == Contract::kCols) != transposed;
  return plain;
}

}  // namespace nibble
