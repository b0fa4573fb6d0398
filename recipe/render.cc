#include "recipe/render.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "recipe/gemm_path.h"
#include "recipe/operand_roles.h"
#include "recipe/selector.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;
using Line = std::array<std::string, kOperandRoles + 2>;  // layer, number of layers, operands

Line LineOf(std::string layer, size_t count, const LayerRecipe& recipe) {
  Line line = {std::move(layer), absl::StrCat(count)};
  for (const OperandRole role : kAllOperandRoles) {
    line[2 + static_cast<size_t>(role)] = OperandName(recipe[role]);
  }
  return line;
}

struct Group {
  const std::string* kind;
  const LayerRecipe* recipe;
  std::vector<int64_t> blocks;
};

// In the order of their first layers.
std::vector<Group> GroupEqual(const ResolvedRecipe& recipe, const Outline& outline) {
  std::vector<Group> groups;
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    const LinearInfo& layer = outline.linears[i];
    // A layer can only join the last group of its kind.
    const auto last = std::find_if(groups.rbegin(), groups.rend(),
                                   [&](const Group& group) { return *group.kind == layer.kind; });
    if (last != groups.rend() && *last->recipe == recipe.layers[i]) {
      last->blocks.push_back(layer.block);
    } else {
      groups.push_back({&layer.kind, &recipe.layers[i], {layer.block}});
    }
  }
  return groups;
}

std::string Align(const std::vector<Line>& lines) {
  std::array<size_t, kOperandRoles + 2> width = {};
  for (const Line& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  }
  std::string text;
  for (const Line& line : lines) {
    for (size_t i = 0; i + 1 < line.size(); ++i) {
      absl::StrAppendFormat(&text, "%-*s  ", static_cast<int>(width[i]), line[i]);
    }
    absl::StrAppend(&text, line.back(), "\n");
  }
  return text;
}

std::string SignsName(const HadamardSpec& hadamard) {
  switch (hadamard.signs) {
    case SignChoice::kFixed:
      return "fixed";
    case SignChoice::kNone:
      return "none";
    case SignChoice::kSeeded:
      return absl::StrCat("seeded:", hadamard.seed);
    case SignChoice::kGiven:
      break;
  }
  return absl::StrFormat("0x%08x%08x%08x%08x", hadamard.mask[3], hadamard.mask[2], hadamard.mask[1],
                         hadamard.mask[0]);
}

Json OperandTree(const OperandFormat& operand) {
  if (!operand) return {{"format", "bf16"}};
  Json tree = {{"format", std::string(Info(operand->format).name)},
               {"block", BlockShapeName(operand->block)},
               {"rounding", operand->rounding == Rounding::kNearest ? "nearest" : "stochastic"}};
  if (operand->format == Format::kNvfp4) {
    tree["formula"] = std::string(FormulaVersionName(operand->formula));
  }
  if (operand->hadamard.size != 0) {
    tree["hadamard"] = operand->hadamard.size;
    tree["signs"] = SignsName(operand->hadamard);
  }
  return tree;
}

}  // namespace

std::vector<ProductRow> ProductsOnCards(const ResolvedRecipe& recipe) {
  constexpr int kCapabilities[] = {90, 100};
  std::vector<ProductRow> rows;
  for (const LinearGemm gemm : kAllLinearGemms) {
    const auto [role_a, role_b] = OperandsOf(gemm);
    for (const int capability : kCapabilities) {
      const size_t first = rows.size();
      for (const LayerRecipe& layer : recipe.layers) {
        const PathOperand a = {.spec = layer[role_a]}, b = {.spec = layer[role_b]};
        if (!a.spec.has_value() && !b.spec.has_value()) continue;
        const PathChoice choice = ChoosePath(a, b, nullptr, {.capability = capability});
        const auto name = [](const PathOperand& operand) {
          return operand.spec.has_value() ? std::string(Info(operand.spec->format).name) : "bf16";
        };
        ProductRow row = {.gemm = gemm,
                          .a = name(a),
                          .b = name(b),
                          .capability = capability,
                          .path = PathName(choice.path, a, b),
                          .reason = choice.reason};
        auto at = std::find_if(rows.begin() + static_cast<int64_t>(first), rows.end(),
                               [&](const ProductRow& known) {
                                 return known.a == row.a && known.b == row.b &&
                                        known.path == row.path && known.reason == row.reason;
                               });
        if (at == rows.end()) at = rows.insert(at, std::move(row));
        ++at->linears;
      }
    }
  }
  return rows;
}

std::string CapabilityName(int capability) {
  return absl::StrCat(capability / 10, ".", capability % 10,
                      capability == 90    ? " (H100, H200)"
                      : capability == 100 ? " (B100, B200)"
                                          : "");
}

absl::Status CheckLayers(const ResolvedRecipe& recipe, const Outline& outline) {
  if (recipe.layers.size() == outline.linears.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("recipe: resolved for ", recipe.layers.size(),
                                                 " layers, but the model has ",
                                                 outline.linears.size()));
}

absl::StatusOr<std::string> RenderTable(const ResolvedRecipe& recipe, const Outline& outline,
                                        Grouping grouping) {
  NIBBLE_RETURN_IF_ERROR(CheckLayers(recipe, outline));
  Line head = {"layer", "layers"};
  for (const OperandRole role : kAllOperandRoles) {
    head[2 + static_cast<size_t>(role)] = std::string(OperandRoleName(role));
  }
  std::vector<Line> lines = {head};
  if (grouping == Grouping::kNone) {
    for (size_t i = 0; i < recipe.layers.size(); ++i) {
      lines.push_back(LineOf(outline.linears[i].name, 1, recipe.layers[i]));
    }
    return Align(lines);
  }
  for (const Group& group : GroupEqual(recipe, outline)) {
    const std::string blocks = BlockRanges(group.blocks, BlocksWith(outline, *group.kind));
    lines.push_back(
        LineOf(absl::StrCat(*group.kind, " ", blocks), group.blocks.size(), *group.recipe));
  }
  return Align(lines);
}

absl::StatusOr<std::string> RenderJson(const ResolvedRecipe& recipe, const Outline& outline) {
  NIBBLE_RETURN_IF_ERROR(CheckLayers(recipe, outline));
  Json layers = Json::array();
  for (size_t i = 0; i < recipe.layers.size(); ++i) {
    const LinearInfo& info = outline.linears[i];
    Json layer = {{"name", info.name},
                  {"kind", info.kind},
                  {"block", info.block},
                  {"in", info.in},
                  {"out", info.out}};
    for (const OperandRole role : kAllOperandRoles) {
      layer["operands"][std::string(OperandRoleName(role))] = OperandTree(recipe.layers[i][role]);
    }
    layers.push_back(std::move(layer));
  }
  const Json tree = {{"model", outline.spec.name}, {"layers", std::move(layers)}};
  return tree.dump(2, ' ', false, Json::error_handler_t::replace);
}

namespace {

using Json = nlohmann::ordered_json;

// The format as a GEMM-wide setting names it: the two variants of fp8-tensor count as one.
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

// The formats before and after, if both operands of a GEMM change from one format to another.
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
  explicit Grouper(DiffDetail detail) : detail_(detail) {}

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
      if (detail_ == DiffDetail::kFull) break;
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
  const DiffDetail detail_;
  RecipeDiff diff_;
};

}  // namespace

absl::StatusOr<RecipeDiff> Diff(const ResolvedRecipe& before, const ResolvedRecipe& after,
                                const Outline& outline, DiffDetail detail) {
  for (const ResolvedRecipe* recipe : {&before, &after}) {
    NIBBLE_RETURN_IF_ERROR(CheckLayers(*recipe, outline));
  }
  Grouper grouper(detail);
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
