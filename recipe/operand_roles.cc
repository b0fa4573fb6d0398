#include "recipe/operand_roles.h"

namespace nibble {
namespace {

struct RoleRow {
  OperandRole role;
  LinearGemm gemm;
  OperandTensor tensor;
  std::string_view name;
};

// In the order of the enumeration.
constexpr RoleRow kRoles[kOperandRoles] = {
    {OperandRole::kFpropActivation, LinearGemm::kFprop, OperandTensor::kActivation,
     "fprop.activation"},
    {OperandRole::kFpropWeight, LinearGemm::kFprop, OperandTensor::kWeight, "fprop.weight"},
    {OperandRole::kDgradGradient, LinearGemm::kDgrad, OperandTensor::kGradient, "dgrad.gradient"},
    {OperandRole::kDgradWeight, LinearGemm::kDgrad, OperandTensor::kWeight, "dgrad.weight"},
    {OperandRole::kWgradGradient, LinearGemm::kWgrad, OperandTensor::kGradient, "wgrad.gradient"},
    {OperandRole::kWgradActivation, LinearGemm::kWgrad, OperandTensor::kActivation,
     "wgrad.activation"},
};

const RoleRow& Row(OperandRole role) { return kRoles[static_cast<size_t>(role)]; }

template <class Predicate>
RoleSet Where(const Predicate& holds) {
  uint8_t bits = 0;
  for (const RoleRow& row : kRoles) {
    if (holds(row)) bits |= uint8_t(1 << static_cast<int>(row.role));
  }
  return RoleSet(bits);
}

}  // namespace

std::string_view OperandRoleName(OperandRole role) { return Row(role).name; }

std::string_view LinearGemmName(LinearGemm gemm) {
  return gemm == LinearGemm::kFprop ? "fprop" : gemm == LinearGemm::kDgrad ? "dgrad" : "wgrad";
}

LinearGemm GemmOf(OperandRole role) { return Row(role).gemm; }
OperandTensor TensorOf(OperandRole role) { return Row(role).tensor; }

std::array<OperandRole, 2> OperandsOf(LinearGemm gemm) {
  const size_t first = 2 * static_cast<size_t>(gemm);
  return {kAllOperandRoles[first], kAllOperandRoles[first + 1]};
}

RoleSet RoleSet::Of(LinearGemm gemm) {
  return Where([gemm](const RoleRow& row) { return row.gemm == gemm; });
}

RoleSet RoleSet::Of(OperandTensor tensor) {
  return Where([tensor](const RoleRow& row) { return row.tensor == tensor; });
}

}  // namespace nibble
