// A recipe: the precision of each GEMM of each linear layer. It consists of a preset, fields that
// override it, and rules for selected layers; the last setting of a field wins. Resolving it
// against a model gives a complete table: nothing is decided later.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_RECIPE_RECIPE_H_
#define NIBBLE_RECIPE_RECIPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/outline.h"
#include "recipe/operand_spec.h"

namespace nibble {

// Unset: high precision (BF16), which recipes write as the format `bf16`.
using OperandFormat = std::optional<OperandSpec>;

// The operands of a linear layer's three GEMMs, always in this order.
enum class OperandRole : uint8_t {
  kFpropActivation,
  kFpropWeight,
  kDgradGradient,
  kDgradWeight,
  kWgradGradient,
  kWgradActivation,
};
inline constexpr int kOperandRoles = 6;
std::string_view OperandRoleName(OperandRole role);  // "fprop.activation", …

struct LayerRecipe {
  std::array<OperandFormat, kOperandRoles> operand;

  const OperandFormat& operator[](OperandRole role) const {
    return operand[static_cast<size_t>(role)];
  }
  OperandFormat& operator[](OperandRole role) { return operand[static_cast<size_t>(role)]; }
  friend bool operator==(const LayerRecipe&, const LayerRecipe&) = default;
};

// "fprop" = "bf16", "wgrad.hadamard" = "16"; recipe/fields.h has the table of fields.
struct FieldSetting {
  std::string field;
  std::string value;
  friend bool operator==(const FieldSetting&, const FieldSetting&) = default;
};

// Fields for the layers that a selector names: "first 2 blocks", "last 8 blocks",
// "attention.qkv", "mamba.*", "blocks.3.mlp.up"; see recipe/selector.h.
struct LayerRule {
  std::string match;
  std::vector<FieldSetting> set;
  friend bool operator==(const LayerRule&, const LayerRule&) = default;
};

struct Recipe {
  std::string preset = "bf16";  // see recipe/presets.h
  std::vector<FieldSetting> set;
  std::vector<LayerRule> layers;
  friend bool operator==(const Recipe&, const Recipe&) = default;
};

struct ResolvedRecipe {
  std::vector<LayerRecipe> layers;  // one per Outline::linears
  friend bool operator==(const ResolvedRecipe&, const ResolvedRecipe&) = default;
};

// InvalidArgument naming the field, its value, what is allowed and the nearest known name; or the
// layer, the operand, the dimension and the block that does not divide it. `tokens` is the number
// of rows of a layer's input (Wgrad sums over them); 0 skips that check.
absl::StatusOr<ResolvedRecipe> Resolve(const Recipe& recipe, const Outline& outline,
                                       int64_t tokens);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_RECIPE_H_
