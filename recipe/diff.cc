#include "recipe/diff.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "recipe/layer_names.h"
#include "recipe/operand_roles.h"
#include "recipe/render.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// The format as a GEMM is told of it: the two of fp8-tensor are one.
std::string FormatName(const OperandFormat& operand) {
  if (!operand) return "bf16";
  const bool e5m2 = operand->format == Format::kFp8TensorE5m2;
  return std::string(Info(e5m2 ? Format::kFp8Tensor : operand->format).name);
}

struct FormatChange {
  std::string from;
  std::string to;
  friend bool operator==(const FormatChange&, const FormatChange&) = default;
};

// Where both operands of a GEMM go from one format to one other.
std::optional<FormatChange> GemmChange(const LayerRecipe& before, const LayerRecipe& after,
                                       LinearGemm gemm) {
  const auto [a, b] = OperandsOf(gemm);
  FormatChange change = {FormatName(before[a]), FormatName(after[a])};
  if (change.from == change.to) return std::nullopt;
  if (change != FormatChange{FormatName(before[b]), FormatName(after[b])}) return std::nullopt;
  return change;
}

class Grouper {
 public:
  void Add(std::string field, FormatChange change, int64_t layer) {
    for (RecipeChangeGroup& group : diff_.groups) {
      if (group.field == field && group.from == change.from && group.to == change.to) {
        group.layers.push_back(layer);
        return;
      }
    }
    diff_.groups.push_back(
        {std::move(field), std::move(change.from), std::move(change.to), {layer}});
  }

  void AddLayer(const LayerRecipe& before, const LayerRecipe& after, int64_t layer) {
    std::array<std::optional<FormatChange>, kLinearGemms> changes;
    for (const LinearGemm gemm : kAllLinearGemms) {
      changes[static_cast<size_t>(gemm)] = GemmChange(before, after, gemm);
    }
    if (changes[0] && changes[0] == changes[1] && changes[0] == changes[2]) {
      return Add("all", *changes[0], layer);
    }
    for (const LinearGemm gemm : kAllLinearGemms) {
      if (const auto& change = changes[static_cast<size_t>(gemm)]) {
        Add(std::string(LinearGemmName(gemm)), *change, layer);
        continue;
      }
      for (const OperandRole role : OperandsOf(gemm)) {
        if (before[role] == after[role]) continue;
        Add(std::string(OperandRoleName(role)),
            {OperandName(before[role]), OperandName(after[role])}, layer);
      }
    }
  }

  RecipeDiff Take() { return std::move(diff_); }

 private:
  RecipeDiff diff_;
};

}  // namespace

absl::StatusOr<RecipeDiff> Diff(const ResolvedRecipe& before, const ResolvedRecipe& after,
                                const Outline& outline) {
  for (const ResolvedRecipe* recipe : {&before, &after}) {
    if (absl::Status status = CheckLayers(*recipe, outline); !status.ok()) return status;
  }
  Grouper grouper;
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    grouper.AddLayer(before.layers[i], after.layers[i], static_cast<int64_t>(i));
  }
  return grouper.Take();
}

std::string DiffText(const RecipeDiff& diff, const Outline& outline) {
  if (diff.groups.empty()) return "no difference\n";
  std::string text;
  for (const RecipeChangeGroup& group : diff.groups) {
    absl::StrAppend(&text, group.field, ": ", group.from, " → ", group.to, " in ",
                    DescribeLayers(outline, group.layers), "\n");
  }
  return text;
}

std::string DiffJson(const RecipeDiff& diff, const Outline& outline) {
  Json groups = Json::array();
  for (const RecipeChangeGroup& group : diff.groups) {
    Json names = Json::array();
    for (const int64_t layer : group.layers) names.push_back(outline.linears[layer].name);
    groups.push_back({{"field", group.field},
                      {"from", group.from},
                      {"to", group.to},
                      {"layers", std::move(names)}});
  }
  return groups.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace nibble
