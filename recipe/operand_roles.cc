#include "recipe/operand_roles.h"

#include <string>

#include "absl/strings/str_cat.h"

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
RoleSet Where(const Predicate& matches) {
  uint8_t bits = 0;
  for (const RoleRow& row : kRoles) {
    if (matches(row)) bits |= uint8_t(1 << static_cast<int>(row.role));
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

namespace {

struct Dimension {
  const char* name;
  int64_t size;
};

// The shape of the copy that is quantised: [rows, along]; the GEMM sums over `along`.
struct CopyShape {
  Dimension rows;
  Dimension along;
};

CopyShape ShapeOf(OperandRole role, const LinearInfo& layer, int64_t tokens) {
  const Dimension in = {"in", layer.in}, out = {"out", layer.out}, rows = {"tokens", tokens};
  switch (role) {
    case OperandRole::kFpropActivation:
      return {rows, in};
    case OperandRole::kFpropWeight:
      return {out, in};
    case OperandRole::kDgradGradient:
      return {rows, out};
    case OperandRole::kDgradWeight:
      return {in, out};
    case OperandRole::kWgradGradient:
      return {out, rows};
    case OperandRole::kWgradActivation:
      break;
  }
  return {in, rows};
}

}  // namespace

absl::Status CheckOperand(const OperandSpec& spec, OperandRole role, const LinearInfo& layer,
                          int64_t tokens) {
  const std::string where =
      absl::StrCat("layer '", layer.name, "', ", std::string(OperandRoleName(role)), ": ");
  if (const absl::Status status = spec.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(where, std::string(status.message())));
  }
  // A size of 0 (unknown tokens) is a multiple of everything.
  const auto multiple = [&](const Dimension& dimension, int64_t of, const char* what) {
    if (of == BlockShape::kWhole || dimension.size % of == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(where, dimension.name, " = ", dimension.size,
                                                   " is not a multiple of the ", what, " ", of,
                                                   " of ", spec.Name()));
  };
  const CopyShape shape = ShapeOf(role, layer, tokens);
  absl::Status status = multiple(shape.along, spec.block.cols, "block");
  if (status.ok()) status = multiple(shape.rows, spec.block.rows, "block");
  if (status.ok() && spec.hadamard.size != 0) {
    status = multiple(shape.along, spec.hadamard.size, "Hadamard size");
  }
  if (status.ok() && spec.rounding == Rounding::kStochastic) {
    status = multiple(shape.along, 16, "group of random bits");
  }
  if (status.ok() && Info(spec.format).element == Element::kE2M1) {
    status = multiple(shape.along, 2, "packing of two per byte");
  }
  return status;
}

}  // namespace nibble
