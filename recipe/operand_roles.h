// The operands of a linear layer's three GEMMs: which GEMM each belongs to, which tensor it is, and
// sets of them.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_RECIPE_OPERAND_ROLES_H_
#define NIBBLE_RECIPE_OPERAND_ROLES_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "model/outline.h"
#include "recipe/recipe.h"

namespace nibble {

enum class LinearGemm : uint8_t { kFprop, kDgrad, kWgrad };
inline constexpr int kLinearGemms = 3;
inline constexpr std::array<LinearGemm, kLinearGemms> kAllLinearGemms = {
    LinearGemm::kFprop, LinearGemm::kDgrad, LinearGemm::kWgrad};
std::string_view LinearGemmName(LinearGemm gemm);  // "fprop", "dgrad", "wgrad"

enum class OperandTensor : uint8_t { kActivation, kWeight, kGradient };

inline constexpr std::array<OperandRole, kOperandRoles> kAllOperandRoles = {
    OperandRole::kFpropActivation, OperandRole::kFpropWeight,   OperandRole::kDgradGradient,
    OperandRole::kDgradWeight,     OperandRole::kWgradGradient, OperandRole::kWgradActivation};

LinearGemm GemmOf(OperandRole role);
OperandTensor TensorOf(OperandRole role);
// The two operands of a GEMM, in the order of OperandRole.
std::array<OperandRole, 2> OperandsOf(LinearGemm gemm);

// A set of roles; one bit per operand.
class RoleSet {
 public:
  constexpr RoleSet() = default;
  constexpr explicit RoleSet(uint8_t bits) : bits_(bits) {}

  static constexpr RoleSet All() { return RoleSet((1 << kOperandRoles) - 1); }
  static RoleSet Of(OperandRole role) { return RoleSet(uint8_t(1 << static_cast<int>(role))); }
  static RoleSet Of(LinearGemm gemm);
  static RoleSet Of(OperandTensor tensor);

  bool Has(OperandRole role) const { return (bits_ >> static_cast<int>(role)) & 1; }
  bool Has(LinearGemm gemm) const { return (bits_ & Of(gemm).bits_) != 0; }
  friend bool operator==(const RoleSet&, const RoleSet&) = default;

 private:
  uint8_t bits_ = 0;
};

// Checks that an operand of a linear layer can be quantised as its spec says: the spec itself, and
// the layer's dimensions against its blocks.
//
// Thread-safety: pure.

// InvalidArgument naming the layer, the operand, and the spec's field, or the dimension, its size
// and the divisor. `tokens`: 0 skips the check of that dimension.
absl::Status CheckOperand(const OperandSpec& spec, OperandRole role, const LinearInfo& layer,
                          int64_t tokens);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_OPERAND_ROLES_H_
