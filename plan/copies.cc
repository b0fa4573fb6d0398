#include "plan/copies.h"

#include <algorithm>

namespace nibble {
namespace {

// Whether one quantisation gives both directions of a weight.
bool IsSharedWeight(const LayerRecipe& recipe) {
  const OperandFormat& fprop = recipe[OperandRole::kFpropWeight];
  return fprop.has_value() && fprop == recipe[OperandRole::kDgradWeight] &&
         fprop->block.rows == fprop->block.cols && fprop->hadamard.size == 0;
}

// Rows and columns of the copy, which is quantised along its columns.
struct CopyShape {
  int64_t rows, cols;
};
CopyShape ShapeOf(OperandRole role, const LinearInfo& linear, int64_t tokens) {
  switch (role) {
    case OperandRole::kFpropActivation:
      return {tokens, linear.in};
    case OperandRole::kFpropWeight:
      return {linear.out, linear.in};
    case OperandRole::kDgradGradient:
      return {tokens, linear.out};
    case OperandRole::kDgradWeight:
      return {linear.in, linear.out};
    case OperandRole::kWgradGradient:
      return {linear.out, tokens};
    case OperandRole::kWgradActivation:
      break;
  }
  return {linear.in, tokens};
}

}  // namespace

PackedBytes PackedSize(const OperandSpec& spec, int64_t rows, int64_t cols) {
  const FormatInfo& info = Info(spec.format);
  const auto blocks = [](int64_t size, int block) {
    return block == BlockShape::kWhole ? 1 : CeilDiv(size, block);
  };
  return {.codes = rows * CeilDiv(cols * ElementBits(info.element), 8),
          .scales = blocks(rows, spec.block.rows) * blocks(cols, spec.block.cols) *
                    ScaleBytes(info.scale)};
}

LinearCopies PlanCopies(const LayerRecipe& recipe, const GemmHardware& hardware) {
  using enum OperandRole;
  LinearCopies copies;
  for (const LinearGemm gemm : kAllLinearGemms) {
    const auto [role_a, role_b] = OperandsOf(gemm);
    const PathOperand a = {.spec = recipe[role_a]}, b = {.spec = recipe[role_b]};
    const bool native = IsNative(ChoosePath(a, b, nullptr, hardware).path);
    for (const OperandRole role : {role_a, role_b}) {
      if (!recipe[role].has_value()) continue;
      const PathOperand operand = {.spec = recipe[role]};
      // FP32 scales of lines and slices are read from the packed form.
      copies[role] = {.packed = native || HasSlices(operand) || HasLines(operand),
                      .emulated = !native};
    }
  }
  if (IsSharedWeight(recipe) && copies[kFpropWeight].emulated && copies[kDgradWeight].emulated) {
    copies[kFpropWeight].packed |= copies[kDgradWeight].packed;
    copies[kDgradWeight] = {};
  }
  copies.bf16_weight = !recipe[kFpropWeight].has_value() || !recipe[kDgradWeight].has_value();
  copies.keeps_input = !recipe[kWgradActivation].has_value();
  return copies;
}

int64_t CopyBytes(const LinearCopies& copies, const LayerRecipe& recipe, OperandRole role,
                  const LinearInfo& linear, int64_t tokens) {
  const LinearCopies::Copy& copy = copies[role];
  if (!copy.exists()) return 0;
  const CopyShape shape = ShapeOf(role, linear, tokens);
  int64_t bytes = 0;
  if (copy.packed) {
    const PackedBytes packed = PackedSize(*recipe[role], shape.rows, shape.cols);
    bytes += Aligned(packed.codes) + Aligned(packed.scales);
  }
  if (copy.emulated) bytes += Aligned(kBf16Bytes * shape.rows * shape.cols);
  return bytes;
}

int64_t WorkingWeightBytes(const LinearCopies& copies, const LayerRecipe& recipe,
                           const LinearInfo& linear) {
  int64_t bytes = CopyBytes(copies, recipe, OperandRole::kFpropWeight, linear, 0) +
                  CopyBytes(copies, recipe, OperandRole::kDgradWeight, linear, 0);
  if (copies.bf16_weight) bytes += Aligned(kBf16Bytes * linear.out * linear.in);
  return bytes;
}

int64_t PackedWeightBytes(const LayerRecipe& recipe, const LinearInfo& linear) {
  const OperandFormat& fprop = recipe[OperandRole::kFpropWeight];
  const OperandFormat& dgrad = recipe[OperandRole::kDgradWeight];
  const int64_t bf16 = kBf16Bytes * linear.out * linear.in;
  if (!fprop.has_value() || !dgrad.has_value()) return bf16;
  int64_t packed = PackedSize(*fprop, linear.out, linear.in).total();
  if (!IsSharedWeight(recipe)) packed += PackedSize(*dgrad, linear.in, linear.out).total();
  return std::min(packed, bf16);
}

}  // namespace nibble
