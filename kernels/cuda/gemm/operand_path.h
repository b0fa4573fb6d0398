// Operands of GEMMs as recipe/gemm_path.h knows them, and the forms that its paths multiply.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_KERNELS_CUDA_GEMM_OPERAND_PATH_H_
#define NIBBLE_KERNELS_CUDA_GEMM_OPERAND_PATH_H_

#include "kernels/gemm/gemm.h"
#include "recipe/gemm_path.h"

namespace nibble {

inline PathOperand PathOperandOf(const GemmOperand& operand) {
  if (operand.is_quantized()) {
    return {.spec = operand.quantized().spec(), .codes = operand.quantized().packed()};
  }
  return {.fp32 = operand.matrix().dtype == DType::kF32, .codes = false};
}

inline PathOperand PathOperandOf(const GemmUse::Operand& operand) {
  return {.spec = operand.spec, .fp32 = operand.dtype == DType::kF32};
}

inline OperandPlan PlanOf(GemmPath path, const PathOperand& operand) {
  if (!operand.spec.has_value()) return {OperandForm::kHighPrecision, false};
  if (path == GemmPath::kMx || path == GemmPath::kNvfp4) return {OperandForm::kPackedTiles, true};
  if (IsNative(path)) return {OperandForm::kPacked, true};
  // BF16 GEMMs take any transposition, so that the source's layout costs nothing and saves a
  // transposed write. FP32 scales of lines and slices are read from the packed form.
  return {OperandForm::kEmulatedSource, HasSlices(operand) || HasLines(operand)};
}

}  // namespace nibble

#endif  // NIBBLE_KERNELS_CUDA_GEMM_OPERAND_PATH_H_
