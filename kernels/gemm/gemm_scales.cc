#include "kernels/gemm/gemm_scales.h"

namespace nibble {
namespace {

bool HasOneScale(const QuantizedTensor& tensor) {
  return tensor.format().scale == ScaleKind::kF32 && tensor.spec().block.rows == BlockShape::kWhole;
}

}  // namespace

AlphaPart AlphaPartOf(const GemmOperand& operand) {
  using Kind = AlphaPart::Kind;
  if (!operand.is_quantized()) return {};
  const QuantizedTensor& tensor = operand.quantized();
  if (tensor.format().tensor_scale) return {Kind::kNvfp4, &tensor.head()->amax};
  if (!HasOneScale(tensor)) return {};
  // Stored, or computed from amax if only the emulated form was kept.
  if (tensor.packed()) return {Kind::kScale, static_cast<const float*>(tensor.scales())};
  const bool e4m3 = tensor.format().element == Element::kE4M3;
  return {e4m3 ? Kind::kE4M3Amax : Kind::kE5M2Amax, &tensor.head()->amax};
}

LineScales LineScalesOf(const GemmOperand& operand) {
  if (!operand.is_quantized()) return {};
  const QuantizedTensor& tensor = operand.quantized();
  if (tensor.format().scale != ScaleKind::kF32 || HasOneScale(tensor)) return {};
  const auto* data = static_cast<const float*>(tensor.scales());
  const bool per_slice = tensor.spec().block.cols != BlockShape::kWhole;
  const bool transposed = tensor.is_column() != (operand.contract == Contract::kRows);
  // A square block contracted along the copy's rows: its scale matrix is read transposed.
  if (transposed) return {data, per_slice, tensor.block_cols(), 1, tensor.scale_cols()};
  return {data, per_slice, tensor.block_rows(), tensor.scale_cols(), per_slice ? 1 : 0};
}

GemmScales ScalesOf(const GemmRequest& request) {
  return {FoldAlpha(request.alpha, AlphaPartOf(request.a), AlphaPartOf(request.b)),
          LineScalesOf(request.a), LineScalesOf(request.b)};
}

}  // namespace nibble
