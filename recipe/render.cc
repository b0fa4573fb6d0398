#include "recipe/render.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "recipe/layer_names.h"
#include "recipe/operand_roles.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;
using Line = std::array<std::string, kOperandRoles + 2>;  // layer, how many, operands

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
    // The last group of the kind is the only one that it may join.
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

absl::Status CheckLayers(const ResolvedRecipe& recipe, const Outline& outline) {
  if (recipe.layers.size() == outline.linears.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("recipe: resolved for ", recipe.layers.size(),
                                                 " layers, but the model has ",
                                                 outline.linears.size()));
}

absl::StatusOr<std::string> RenderTable(const ResolvedRecipe& recipe, const Outline& outline,
                                        Grouping grouping) {
  if (absl::Status status = CheckLayers(recipe, outline); !status.ok()) return status;
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
  if (absl::Status status = CheckLayers(recipe, outline); !status.ok()) return status;
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

}  // namespace nibble
