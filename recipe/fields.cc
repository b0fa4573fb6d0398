#include "recipe/fields.h"

#include <algorithm>
#include <charconv>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/near_name.h"

namespace nibble {
namespace {

constexpr std::string_view kDefault = "default";
constexpr std::string_view kBf16 = "bf16";
constexpr std::string_view kGrammar =
    "a field is keep, all, a GEMM (fprop, dgrad, wgrad), one of its operands (fprop.weight) or a "
    "tensor (activations, weights, gradients), alone for the format or followed by .rounding, "
    ".block, .hadamard, .hadamard.signs or .formula";

// ---- the table ------------------------------------------------------------------------------

struct Scope {
  std::string name;    // "" for the whole layer
  std::string phrase;  // "… of both operands of Fprop"
  RoleSet roles;
  enum Kind { kLayer, kGemm, kTensor, kOperand } kind;
};

const char* GemmTitle(LinearGemm gemm) {
  return gemm == LinearGemm::kFprop ? "Fprop" : gemm == LinearGemm::kDgrad ? "Dgrad" : "Wgrad";
}

std::vector<Scope> AllScopes() {
  std::vector<Scope> scopes = {
      {"", "every operand", RoleSet::All(), Scope::kLayer},
      {"fprop", "both operands of Y = X W^T", RoleSet::Of(LinearGemm::kFprop), Scope::kGemm},
      {"dgrad", "both operands of dX = dY W", RoleSet::Of(LinearGemm::kDgrad), Scope::kGemm},
      {"wgrad", "both operands of dW = dY^T X", RoleSet::Of(LinearGemm::kWgrad), Scope::kGemm},
      {"activations", "X, in Fprop and Wgrad", RoleSet::Of(OperandTensor::kActivation),
       Scope::kTensor},
      {"weights", "W, in Fprop and Dgrad", RoleSet::Of(OperandTensor::kWeight), Scope::kTensor},
      {"gradients", "dY, in Dgrad and Wgrad", RoleSet::Of(OperandTensor::kGradient),
       Scope::kTensor}};
  const auto tensor = [](OperandRole role) {
    switch (TensorOf(role)) {
      case OperandTensor::kActivation:
        return "X";
      case OperandTensor::kWeight:
        return "W";
      case OperandTensor::kGradient:
        break;
    }
    return "dY";
  };
  for (const OperandRole role : kAllOperandRoles) {
    scopes.push_back({std::string(OperandRoleName(role)),
                      absl::StrCat(tensor(role), " in ", GemmTitle(GemmOf(role))),
                      RoleSet::Of(role), Scope::kOperand});
  }
  return scopes;
}

std::vector<std::string> FormatNames() {
  std::vector<std::string> names = {std::string(kBf16)};
  for (const FormatInfo& info : AllFormats()) names.emplace_back(info.name);
  return names;
}

std::vector<std::string> BlockNames() {
  std::vector<std::string> names;
  for (const FormatInfo& info : AllFormats()) {
    for (const BlockShape& shape : info.shapes) {
      const std::string name = BlockShapeName(shape);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> HadamardNames() {
  std::vector<std::string> names = {"off"};
  for (int size = 2; size <= HadamardSpec::kMaxSize; size *= 2) names.push_back(absl::StrCat(size));
  return names;
}

// The values and the meaning of a property; `scopes` are those that have it.
struct PropertyRow {
  FieldKind kind;
  std::string suffix;
  std::vector<Scope::Kind> scopes;
  std::vector<std::string> values;
  std::string meaning;  // "$" stands for the scope
};

std::vector<PropertyRow> AllProperties() {
  const std::vector<Scope::Kind> everywhere = {Scope::kLayer, Scope::kGemm, Scope::kTensor,
                                               Scope::kOperand};
  return {
      {FieldKind::kFormat, "", everywhere, FormatNames(), "format of $"},
      {FieldKind::kRounding, "rounding", everywhere, {"nearest", "stochastic"}, "rounding of $"},
      {FieldKind::kBlock,
       "block",
       {Scope::kGemm, Scope::kTensor, Scope::kOperand},
       BlockNames(),
       "elements that share a scale, of $; the format must have that block"},
      {FieldKind::kHadamard,
       "hadamard",
       {Scope::kLayer, Scope::kGemm},
       HadamardNames(),
       "size of the Hadamard transform of $, if both are quantised"},
      {FieldKind::kSigns,
       "hadamard.signs",
       {Scope::kLayer, Scope::kGemm},
       {"fixed", "seeded:N", "none"},
       "random signs of the transforms of $"},
      {FieldKind::kFormula,
       "formula",
       everywhere,
       {std::string(FormulaVersionName(FormulaVersion::kTe2_14)),
        std::string(FormulaVersionName(FormulaVersion::kTePre2_14))},
       "version of the nvfp4 scale formula of $, if it is nvfp4"},
  };
}

FieldInfo MakeField(const PropertyRow& property, const Scope& scope) {
  FieldInfo field;
  field.kind = property.kind;
  field.roles = scope.roles;
  field.name = property.suffix.empty() ? (scope.name.empty() ? "all" : scope.name)
               : scope.name.empty()    ? property.suffix
                                       : absl::StrCat(scope.name, ".", property.suffix);
  std::string phrase = scope.phrase;
  if (property.kind == FieldKind::kHadamard && scope.name.empty()) {
    // Only Wgrad's operands are quantised for a single GEMM, so only Wgrad can have a transform by
    // default.
    field.roles = RoleSet::Of(LinearGemm::kWgrad);
    phrase = "both operands of Wgrad";
  }
  field.meaning = property.meaning;
  field.meaning.replace(field.meaning.find('$'), 1, phrase);
  field.values = absl::StrCat(absl::StrJoin(property.values, ", "), ", ", std::string(kDefault));
  return field;
}

std::vector<FieldInfo> MakeFields() {
  std::vector<FieldInfo> fields = {
      {"keep", FieldKind::kKeep, RoleSet::All(), absl::StrCat("F+L, none, ", std::string(kDefault)),
       "the first F and the last L blocks stay in bf16; only for the whole model"}};
  const std::vector<Scope> scopes = AllScopes();
  for (const PropertyRow& property : AllProperties()) {
    for (const Scope& scope : scopes) {
      if (std::find(property.scopes.begin(), property.scopes.end(), scope.kind) !=
          property.scopes.end()) {
        fields.push_back(MakeField(property, scope));
      }
    }
  }
  return fields;
}

// ---- values ---------------------------------------------------------------------------------

absl::Status Refuse(const FieldInfo& field, std::string_view value,
                    std::vector<std::string> known) {
  known.emplace_back(kDefault);
  return absl::InvalidArgumentError(
      absl::StrCat(field.name, ": ", QuotedWithNearest(value, known), "; allowed: ", field.values));
}

template <class T>
std::optional<T> ParseWhole(std::string_view text) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

absl::StatusOr<FieldValue> ParseKeep(const FieldInfo& field, std::string_view text) {
  if (text == "none") return FieldValue{&field, KeepBlocks{0, 0}};
  const size_t plus = text.find('+');
  if (plus != std::string_view::npos) {
    const std::optional<int64_t> first = ParseWhole<int64_t>(text.substr(0, plus));
    const std::optional<int64_t> last = ParseWhole<int64_t>(text.substr(plus + 1));
    if (first && last && *first >= 0 && *last >= 0) {
      return FieldValue{&field, KeepBlocks{*first, *last}};
    }
  }
  return Refuse(field, text, {"none"});
}

absl::StatusOr<FieldValue> ParseSigns(const FieldInfo& field, std::string_view text) {
  constexpr std::string_view kSeeded = "seeded:";
  if (text == "fixed") return FieldValue{&field, SignSetting{SignChoice::kFixed, 0}};
  if (text == "none") return FieldValue{&field, SignSetting{SignChoice::kNone, 0}};
  if (text.substr(0, kSeeded.size()) == kSeeded) {
    const std::optional<uint64_t> seed = ParseWhole<uint64_t>(text.substr(kSeeded.size()));
    if (seed) return FieldValue{&field, SignSetting{SignChoice::kSeeded, *seed}};
  }
  return Refuse(field, text, {"fixed", "seeded:1", "none"});
}

absl::StatusOr<FieldValue> ParseFormatValue(const FieldInfo& field, std::string_view text) {
  if (text == kBf16) return FieldValue{&field, std::optional<Format>()};
  const std::optional<Format> format = ParseFormat(text);
  if (!format) return Refuse(field, text, FormatNames());
  return FieldValue{&field, format};
}

absl::StatusOr<FieldValue> ParseValue(const FieldInfo& field, std::string_view text) {
  if (text == kDefault) return FieldValue{&field, FieldDefault()};
  switch (field.kind) {
    case FieldKind::kKeep:
      return ParseKeep(field, text);
    case FieldKind::kFormat:
      return ParseFormatValue(field, text);
    case FieldKind::kRounding:
      if (text == "nearest") return FieldValue{&field, Rounding::kNearest};
      if (text == "stochastic") return FieldValue{&field, Rounding::kStochastic};
      return Refuse(field, text, {"nearest", "stochastic"});
    case FieldKind::kBlock: {
      const std::vector<std::string> names = BlockNames();
      if (std::find(names.begin(), names.end(), text) == names.end()) {
        return Refuse(field, text, names);
      }
      return FieldValue{&field, *ParseBlockShape(text)};
    }
    case FieldKind::kHadamard: {
      const std::vector<std::string> names = HadamardNames();
      const auto found = std::find(names.begin(), names.end(), text);
      if (found == names.end()) return Refuse(field, text, names);
      const int64_t power = found - names.begin();
      return FieldValue{&field, HadamardSize{power == 0 ? 0 : 1 << power}};
    }
    case FieldKind::kSigns:
      return ParseSigns(field, text);
    case FieldKind::kFormula:
      break;
  }
  std::vector<std::string> names;
  for (const FormulaVersion version : {FormulaVersion::kTe2_14, FormulaVersion::kTePre2_14}) {
    names.emplace_back(FormulaVersionName(version));
    if (text == names.back()) return FieldValue{&field, version};
  }
  return Refuse(field, text, names);
}

}  // namespace

const std::vector<FieldInfo>& AllFields() {
  static const std::vector<FieldInfo>* const fields = new std::vector<FieldInfo>(MakeFields());
  return *fields;
}

const FieldInfo* FindField(std::string_view name) {
  for (const FieldInfo& field : AllFields()) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

std::string FieldsHelp() {
  size_t width = 0;
  for (const FieldInfo& field : AllFields()) width = std::max(width, field.name.size());
  std::string help;
  const FieldInfo* previous = nullptr;
  for (const FieldInfo& field : AllFields()) {
    if (previous == nullptr || previous->values != field.values) {
      absl::StrAppend(&help, previous == nullptr ? "" : "\n", field.values, "\n");
    }
    absl::StrAppendFormat(&help, "  %-*s  %s\n", static_cast<int>(width), field.name,
                          field.meaning);
    previous = &field;
  }
  return help;
}

std::string QuotedWithNearest(std::string_view name, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, std::span<const std::string>(known));
  std::string text = absl::StrCat("'", std::string(name), "' is not known");
  if (!nearest.empty()) absl::StrAppend(&text, "; nearest: '", nearest, "'");
  return text;
}

absl::StatusOr<FieldValue> ParseField(const FieldSetting& setting) {
  const FieldInfo* field = FindField(setting.field);
  if (field != nullptr) return ParseValue(*field, setting.value);
  std::vector<std::string> names;
  for (const FieldInfo& info : AllFields()) names.push_back(info.name);
  return absl::InvalidArgumentError(absl::StrCat(
      "recipe field ", QuotedWithNearest(setting.field, names), "; ", std::string(kGrammar)));
}

absl::StatusOr<FieldSetting> SplitFieldSetting(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text), "' is not FIELD=VALUE, such as fprop=bf16"));
  }
  return FieldSetting{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))};
}

}  // namespace nibble
