#include "kernels/gemm/gemm_scales.h"

#include "kernels/formats/scaling.h"

namespace nibble {
namespace {

bool IsNvfp4(const GemmOperand& operand) {
  return operand.is_quantized() && operand.quantized().format().tensor_scale;
}

bool HasOneScale(const QuantizedTensor& tensor) {
  return tensor.format().scale == ScaleKind::kF32 && tensor.spec().block.rows == BlockShape::kWhole;
}

// The scale of a whole tensor: stored, or computed from amax if only the emulated form was kept.
float TensorScale(const QuantizedTensor& tensor) {
  if (tensor.packed()) return static_cast<const float*>(tensor.scales())[0];
  const float amax = tensor.head()->amax;
  return tensor.format().element == Element::kE4M3 ? Fp32Scale<E4M3>::BlockScale(amax)
                                                   : Fp32Scale<E5M2>::BlockScale(amax);
}

float FoldAlpha(float alpha, const GemmOperand& operand) {
  if (!operand.is_quantized()) return alpha;
  const QuantizedTensor& tensor = operand.quantized();
  if (IsNvfp4(operand)) return (alpha * tensor.head()->amax) * Nvfp4::kOneOver2688;
  return HasOneScale(tensor) ? alpha * TensorScale(tensor) : alpha;
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

}  // namespace

GemmScales ScalesOf(const GemmRequest& request) {
  GemmScales scales;
  if (IsNvfp4(request.a) && IsNvfp4(request.b)) {
    scales.alpha = Nvfp4::GemmAlpha(request.alpha, request.a.quantized().head()->amax,
                                    request.b.quantized().head()->amax);
  } else {
    scales.alpha = FoldAlpha(FoldAlpha(request.alpha, request.a), request.b);
  }
  scales.a = LineScalesOf(request.a);
  scales.b = LineScalesOf(request.b);
  return scales;
}

}  // namespace nibble
