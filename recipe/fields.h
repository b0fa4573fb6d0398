// Every field that a recipe can set: name, allowed values, meaning, in one table from which
// parsing, error messages and help are made.
//
// A field's name is a scope and a property. Scopes: `all` (written as nothing before a property), a
// GEMM (`fprop`), one of its operands (`fprop.weight`), or a tensor wherever it is an operand
// (`weights`). A scope alone sets the format; `.rounding`, `.block`, `.hadamard`, `.hadamard.signs`
// and `.formula` set how it is carried out. So the ablations of the NVFP4 paper are a field each:
// `hadamard=off`, `gradients.rounding=nearest`, `weights.block=1x16`, `keep=none`.
//
// Formats and properties are set apart: a property stays set while the format changes, also through
// bf16 and back. What no field says comes from the preset's own options for the format (see
// presets.h), plain defaults for formats that the preset does not speak of. `default` takes back
// what was set before.
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
  RoleSet roles;       // the operands it speaks of
  std::string values;  // allowed, as a person writes them
  std::string meaning;
};

// By kind, wider scopes first.
const std::vector<FieldInfo>& AllFields();
// Null where there is no such field.
const FieldInfo* FindField(std::string_view name);
// For a person: the allowed values of each kind of field, then its fields, a line each.
std::string FieldsHelp();

// How many blocks stay in bf16 at either end of the model.
struct KeepBlocks {
  int64_t first = 0;
  int64_t last = 0;
  friend bool operator==(const KeepBlocks&, const KeepBlocks&) = default;
};

struct SignSetting {
  SignChoice choice = SignChoice::kFixed;
  uint64_t seed = 0;  // of kSeeded
  friend bool operator==(const SignSetting&, const SignSetting&) = default;
};

struct HadamardSize {
  int size = 0;
  friend bool operator==(const HadamardSize&, const HadamardSize&) = default;
};

struct FieldDefault {
  friend bool operator==(const FieldDefault&, const FieldDefault&) = default;
};

// A setting understood. The alternative of `value` is FieldDefault or the one of field->kind;
// of kFormat, unset is bf16.
struct FieldValue {
  const FieldInfo* field = nullptr;
  std::variant<FieldDefault, KeepBlocks, std::optional<Format>, Rounding, BlockShape, HadamardSize,
               SignSetting, FormulaVersion>
      value;
};

// InvalidArgument naming the field, the value, what is allowed and the nearest known name.
absl::StatusOr<FieldValue> ParseField(const FieldSetting& setting);
// "field=value".
absl::StatusOr<FieldSetting> SplitFieldSetting(std::string_view text);

// `name`, quoted, with the nearest of `known` where one is near: "'fprp'; nearest: 'fprop'".
std::string QuotedWithNearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace nibble

#endif  // NIBBLE_RECIPE_FIELDS_H_
