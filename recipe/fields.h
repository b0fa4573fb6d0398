// All fields that a recipe can set, with name, allowed values and meaning, in one table from which
// parsing, error messages and help are made.
//
// A field's name is a scope and a property. Scopes: `all` (empty before a property), a GEMM
// (`fprop`), one of its operands (`fprop.weight`), or a tensor wherever it is an operand
// (`weights`). A scope alone sets the format; `.rounding`, `.block`, `.hadamard`, `.hadamard.signs`
// and `.formula` set properties of the quantisation. So each ablation of the NVFP4 paper is one
// field: `hadamard=off`, `gradients.rounding=nearest`, `weights.block=1x16`, `keep=none`.
//
// Formats and properties are independent: a property stays set when the format changes, even to
// bf16 and back. Unset properties come from the preset's own options for the format (see
// presets.h), or plain defaults for formats that the preset has no options for. `default` undoes an
// earlier setting.
//
// Thread-safety: an immutable table and pure functions.
#ifndef NIBBLE_RECIPE_FIELDS_H_
#define NIBBLE_RECIPE_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "recipe/operand_roles.h"
#include "recipe/recipe.h"

namespace nibble {

enum class FieldKind : uint8_t {
  kKeep,
  kFormat,
  kRounding,
  kBlock,
  kHadamard,
  kSigns,
  kFormula,
};

struct FieldInfo {
  std::string name;
  FieldKind kind;
  RoleSet roles;       // the operands that it sets
  std::string values;  // allowed values, as users write them
  std::string meaning;
};

// Ordered by kind, wider scopes first.
const std::vector<FieldInfo>& AllFields();
// Null if there is no such field.
const FieldInfo* FindField(std::string_view name);
// Help text: the allowed values of each kind of field, followed by its fields, one per line.
std::string FieldsHelp();

// The number of blocks at either end of the model that stay in bf16.
struct KeepBlocks {
  int64_t first = 0;
  int64_t last = 0;
  friend bool operator==(const KeepBlocks&, const KeepBlocks&) = default;
};

struct SignSetting {
  SignChoice choice = SignChoice::kFixed;
  uint64_t seed = 0;  // for kSeeded
  friend bool operator==(const SignSetting&, const SignSetting&) = default;
};

struct HadamardSize {
  int size = 0;
  friend bool operator==(const HadamardSize&, const HadamardSize&) = default;
};

struct FieldDefault {
  friend bool operator==(const FieldDefault&, const FieldDefault&) = default;
};

// A parsed setting. `value` holds FieldDefault or the alternative of field->kind; for kFormat,
// unset is bf16.
struct FieldValue {
  const FieldInfo* field = nullptr;
  std::variant<FieldDefault, KeepBlocks, std::optional<Format>, Rounding, BlockShape, HadamardSize,
               SignSetting, FormulaVersion>
      value;
};

// InvalidArgument naming the field, the value, what is allowed and the nearest known name.
absl::StatusOr<FieldValue> ParseField(const FieldSetting& setting);
// Parses "field=value".
absl::StatusOr<FieldSetting> SplitFieldSetting(std::string_view text);

// `name` in quotes, with the nearest of `known` if one is near: "'fprp'; nearest: 'fprop'".
std::string QuotedWithNearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_FIELDS_H_
