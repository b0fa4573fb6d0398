#include <array>
#include <optional>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "recipe/fields.h"
#include "recipe/operand_roles.h"
#include "recipe/presets.h"
#include "recipe/recipe.h"
#include "recipe/selector.h"

namespace nibble {
namespace {

// The settings of one operand so far. Formats and properties are separate, so that a property
// survives a change of format.
struct OperandState {
  std::optional<Format> preset;                 // unset: bf16
  std::optional<std::optional<Format>> chosen;  // by a field
  bool kept = false;                            // in bf16, because of its block
  std::optional<Rounding> rounding;
  std::optional<BlockShape> block;
  std::optional<FormulaVersion> formula;

  std::optional<Format> format() const {
    if (kept) return std::nullopt;
    return chosen ? *chosen : preset;
  }
};

struct LayerState {
  std::array<OperandState, kOperandRoles> operand;
  std::array<std::optional<int>, kLinearGemms> hadamard;
  std::array<std::optional<SignSetting>, kLinearGemms> signs;
};

// fp8-tensor is two formats: gradients use E5M2.
std::optional<Format> FormatFor(std::optional<Format> format, OperandRole role) {
  if (format == Format::kFp8Tensor && TensorOf(role) == OperandTensor::kGradient) {
    return Format::kFp8TensorE5m2;
  }
  return format;
}

// The value of a property, or unset for FieldDefault.
template <class T>
std::optional<T> Chosen(const FieldValue& value) {
  const T* chosen = std::get_if<T>(&value.value);
  return chosen == nullptr ? std::nullopt : std::optional<T>(*chosen);
}

class Resolver {
 public:
  Resolver(const Preset& preset, const Outline& outline)
      : preset_(preset),
        outline_(outline),
        blocks_(outline.spec.blocks()),
        keep_(KeepFor(preset.keep, blocks_)),
        layers_(outline.linears.size()) {}

  absl::Status ApplyPreset() {
    for (size_t i = 0; i < layers_.size(); ++i) all_.push_back(static_cast<int64_t>(i));
    absl::Status status = Apply(preset_.set, all_, true);
    for (const LayerRule& rule : preset_.layers) {
      if (!status.ok()) return status;
      NIBBLE_ASSIGN_OR_RETURN(const Selector selector, Selector::Parse(rule.match));
      const absl::StatusOr<std::vector<int64_t>> selected = selector.Select(outline_);
      if (selected.ok()) status = Apply(rule.set, *selected, true);
    }
    for (LayerState& layer : layers_) {
      for (OperandState& operand : layer.operand) {
        if (operand.chosen) operand.preset = *operand.chosen;
        operand.chosen.reset();
      }
    }
    KeepEnds();
    return status;
  }

  absl::Status ApplyRecipe(const Recipe& recipe) {
    absl::Status status = Apply(recipe.set, all_, true);
    for (const LayerRule& rule : recipe.layers) {
      if (!status.ok()) return status;
      NIBBLE_ASSIGN_OR_RETURN(const Selector selector, Selector::Parse(rule.match));
      NIBBLE_ASSIGN_OR_RETURN(const std::vector<int64_t> selected, selector.Select(outline_));
      status = Apply(rule.set, selected, rule.match == "*");
    }
    return status;
  }

  absl::StatusOr<ResolvedRecipe> Finish(int64_t tokens) const {
    ResolvedRecipe resolved;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const LayerRecipe layer = Specs(layers_[i]);
      for (const OperandRole role : kAllOperandRoles) {
        if (!layer[role]) continue;
        NIBBLE_RETURN_IF_ERROR(CheckOperand(*layer[role], role, outline_.linears[i], tokens));
      }
      resolved.layers.push_back(layer);
    }
    return resolved;
  }

 private:
  absl::Status Apply(const std::vector<FieldSetting>& settings, const std::vector<int64_t>& layers,
                     bool whole_model) {
    for (const FieldSetting& setting : settings) {
      NIBBLE_ASSIGN_OR_RETURN(const FieldValue value, ParseField(setting));
      if (value.field->kind == FieldKind::kKeep) {
        NIBBLE_RETURN_IF_ERROR(Keep(value, whole_model));
        continue;
      }
      for (const int64_t layer : layers) ApplyTo(layer, value);
    }
    return absl::OkStatus();
  }

  absl::Status Keep(const FieldValue& value, bool whole_model) {
    if (!whole_model) {
      return absl::InvalidArgumentError(
          "keep: selects blocks itself, so a rule for selected layers cannot set it; allowed: "
          "among the recipe's own fields, or in a rule for '*'");
    }
    const KeepBlocks keep = Chosen<KeepBlocks>(value).value_or(KeepFor(preset_.keep, blocks_));
    if (keep.first > blocks_ || keep.last > blocks_ - keep.first) {
      return absl::InvalidArgumentError(absl::StrCat(
          "keep: ", keep.first, "+", keep.last, " is more than the model's ", blocks_, " blocks"));
    }
    keep_ = keep;
    KeepEnds();
    return absl::OkStatus();
  }

  bool IsKept(int64_t layer) const {
    const int64_t block = outline_.linears[layer].block;
    return block < keep_.first || block >= blocks_ - keep_.last;
  }

  void KeepEnds() {
    for (const int64_t layer : all_) {
      for (OperandState& operand : layers_[layer].operand) operand.kept = IsKept(layer);
    }
  }

  void ApplyTo(int64_t layer, const FieldValue& value) {
    LayerState& state = layers_[layer];
    const FieldInfo& field = *value.field;
    for (const OperandRole role : kAllOperandRoles) {
      if (!field.roles.Has(role)) continue;
      OperandState& operand = state.operand[static_cast<size_t>(role)];
      if (field.kind == FieldKind::kFormat) {
        const auto chosen = Chosen<std::optional<Format>>(value);
        operand.kept = !chosen && IsKept(layer);
        operand.chosen.reset();
        if (chosen) operand.chosen = FormatFor(*chosen, role);
      } else if (field.kind == FieldKind::kRounding) {
        operand.rounding = Chosen<Rounding>(value);
      } else if (field.kind == FieldKind::kBlock) {
        operand.block = Chosen<BlockShape>(value);
      } else if (field.kind == FieldKind::kFormula) {
        operand.formula = Chosen<FormulaVersion>(value);
      }
    }
    for (const LinearGemm gemm : kAllLinearGemms) {
      if (!field.roles.Has(gemm)) continue;
      const size_t at = static_cast<size_t>(gemm);
      if (field.kind == FieldKind::kSigns) state.signs[at] = Chosen<SignSetting>(value);
      if (field.kind == FieldKind::kHadamard) {
        const std::optional<HadamardSize> size = Chosen<HadamardSize>(value);
        state.hadamard[at] = size ? std::optional<int>(size->size) : std::nullopt;
      }
    }
  }

  const FormatOptions* OptionsFor(Format format) const {
    for (const FormatOptions& options : preset_.options) {
      if (options.format == format) return &options;
    }
    return nullptr;
  }

  // Both operands of a GEMM are transformed in the same way, or neither: the GEMM cancels the
  // transform.
  HadamardSpec Transform(const LayerState& state, LinearGemm gemm) const {
    std::array<std::optional<Format>, 2> formats;
    for (int i = 0; i < 2; ++i) {
      formats[i] = state.operand[static_cast<size_t>(OperandsOf(gemm)[i])].format();
      if (!formats[i]) return {};
    }
    int size = 0;
    const FormatOptions* options = formats[0] == formats[1] ? OptionsFor(*formats[0]) : nullptr;
    if (gemm == LinearGemm::kWgrad && options != nullptr) size = options->wgrad_hadamard;
    const size_t at = static_cast<size_t>(gemm);
    size = state.hadamard[at].value_or(size);
    if (size == 0) return {};
    const SignSetting signs = state.signs[at].value_or(SignSetting());
    HadamardSpec spec;
    spec.size = size;
    spec.signs = signs.choice;
    spec.seed = signs.seed;
    return spec;
  }

  LayerRecipe Specs(const LayerState& state) const {
    LayerRecipe layer;
    for (const OperandRole role : kAllOperandRoles) {
      const OperandState& operand = state.operand[static_cast<size_t>(role)];
      const std::optional<Format> format = operand.format();
      if (!format) continue;
      OperandSpec spec = OperandSpec::Of(*format);
      if (const FormatOptions* options = OptionsFor(*format); options != nullptr) {
        if (TensorOf(role) == OperandTensor::kWeight) spec.block = options->weight_block;
        if (TensorOf(role) == OperandTensor::kGradient) spec.rounding = options->gradient_rounding;
      }
      spec.block = operand.block.value_or(spec.block);
      spec.rounding = operand.rounding.value_or(spec.rounding);
      if (*format == Format::kNvfp4) spec.formula = operand.formula.value_or(spec.formula);
      spec.hadamard = Transform(state, GemmOf(role));
      layer[role] = spec;
    }
    return layer;
  }

  const Preset& preset_;
  const Outline& outline_;
  const int64_t blocks_;
  KeepBlocks keep_;
  std::vector<int64_t> all_;
  std::vector<LayerState> layers_;
};

}  // namespace

absl::StatusOr<ResolvedRecipe> Resolve(const Recipe& recipe, const Outline& outline,
                                       int64_t tokens) {
  const absl::StatusOr<const Preset*> preset = FindPreset(recipe.preset);
  if (!preset.ok()) return absl::InvalidArgumentError(preset.status().message());
  if (tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", tokens, " is negative"));
  }
  Resolver resolver(**preset, outline);
  absl::Status status = resolver.ApplyPreset();
  if (status.ok()) status = resolver.ApplyRecipe(recipe);
  if (!status.ok()) return status;
  return resolver.Finish(tokens);
}

}  // namespace nibble
