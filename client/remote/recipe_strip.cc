#include "client/remote/recipe_strip.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/remote/job_text.h"
#include "common/text/text.h"
#include "recipe/recipe.h"

namespace nibble {
namespace {

constexpr int kHighPrecisionBits = 16;

struct Shade {
  const char* utf8;
  const char* ascii;
  Ink ink;
};

Shade ShadeOf(const GemmBits& bits) {
  const std::array<int, 3> all = {bits.fprop, bits.dgrad, bits.wgrad};
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  if (*least == 0) return {"─", "-", Ink::kFaint};
  if (*least >= kHighPrecisionBits) return {"█", "#", Ink::kMagenta};
  if (*most >= kHighPrecisionBits) return {"▓", "=", Ink::kBlue};
  if (*most > 4) return {"▒", ":", Ink::kCyan};
  return {"░", ".", Ink::kGreen};
}

std::vector<FieldSetting> FieldSettingsOf(
    const google::protobuf::RepeatedPtrField<v1::FieldSetting>& messages) {
  std::vector<FieldSetting> settings;
  for (const v1::FieldSetting& message : messages) {
    settings.push_back({message.field(), message.value()});
  }
  return settings;
}

// What of the recipe is written one after the other: "fprop=bf16", "last 8 blocks:fprop=bf16".
std::vector<std::string> Phrases(const v1::Recipe& recipe) {
  std::vector<std::string> phrases;
  for (const v1::FieldSetting& setting : recipe.set()) {
    phrases.push_back(absl::StrCat(setting.field(), "=", setting.value()));
  }
  for (const v1::LayerRule& rule : recipe.layers()) {
    std::vector<std::string> settings;
    for (const v1::FieldSetting& setting : rule.set()) {
      settings.push_back(absl::StrCat(setting.field(), "=", setting.value()));
    }
    phrases.push_back(absl::StrCat(rule.match(), ":", absl::StrJoin(settings, ",")));
  }
  return phrases;
}

int OperandBits(const OperandFormat& format) {
  return format ? ElementBits(Info(format->format).element) : kHighPrecisionBits;
}

}  // namespace

GemmBits BitsOf(const v1::Recipe& recipe, const Outline& outline) {
  Recipe given = {.preset = recipe.preset(), .set = FieldSettingsOf(recipe.set())};
  for (const v1::LayerRule& rule : recipe.layers()) {
    given.layers.push_back({rule.match(), FieldSettingsOf(rule.set())});
  }
  const absl::StatusOr<ResolvedRecipe> resolved = Resolve(given, outline, 0);
  if (!resolved.ok() || resolved->layers.size() != outline.linears.size()) return {};
  // Weights by bits, of each GEMM.
  std::array<std::map<int, double>, 3> weights;
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    const LinearInfo& linear = outline.linears[i];
    const auto size = static_cast<double>(linear.in) * static_cast<double>(linear.out);
    for (size_t gemm = 0; gemm < weights.size(); ++gemm) {
      const auto& operands = resolved->layers[i].operand;
      weights[gemm][std::max(OperandBits(operands[2 * gemm]),
                             OperandBits(operands[2 * gemm + 1]))] += size;
    }
  }
  const auto most = [](const std::map<int, double>& by_bits) {
    const auto found =
        std::max_element(by_bits.begin(), by_bits.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    return found == by_bits.end() ? 0 : found->first;
  };
  return {most(weights[0]), most(weights[1]), most(weights[2])};
}

std::string BitsText(const GemmBits& bits) {
  if (bits == GemmBits()) return "";
  if (bits.fprop == bits.dgrad && bits.dgrad == bits.wgrad) {
    return absl::StrCat(bits.fprop, " bits");
  }
  return absl::StrCat("fprop ", bits.fprop, ", dgrad ", bits.dgrad, ", wgrad ", bits.wgrad,
                      " bits");
}

std::vector<v1::RecipeRevision> EffectiveRevisions(const std::vector<v1::RecipeRevision>& all) {
  std::vector<v1::RecipeRevision> effective;
  for (const v1::RecipeRevision& revision : all) {
    if (!revision.refused().empty()) continue;
    while (!effective.empty() && effective.back().first_step() >= revision.first_step()) {
      effective.pop_back();
    }
    effective.push_back(revision);
  }
  return effective;
}

std::string RecipeChangeText(const v1::Recipe& before, const v1::Recipe& after) {
  if (before.preset() != after.preset()) return RecipeText(after);
  const std::vector<std::string> known = Phrases(before);
  std::vector<std::string> added;
  for (std::string& phrase : Phrases(after)) {
    if (std::find(known.begin(), known.end(), phrase) == known.end()) {
      added.push_back(std::move(phrase));
    }
  }
  return added.empty() ? RecipeText(after) : absl::StrJoin(added, ", ");
}

StyledLine RecipeStrip(const std::vector<v1::RecipeRevision>& effective,
                       const std::map<int64_t, GemmBits>& bits, const PlotArea& area,
                       double x_per_step) {
  std::string name_column = "timeline";
  name_column.resize(area.margin, ' ');
  StyledLine line(name_column);
  size_t column = 0;
  for (size_t i = 0; i < effective.size() && column < area.columns; ++i) {
    const v1::RecipeRevision& revision = effective[i];
    const double from = static_cast<double>(revision.first_step()) * x_per_step;
    const double to = i + 1 < effective.size()
                          ? static_cast<double>(effective[i + 1].first_step()) * x_per_step
                          : area.x_to;
    if (from >= area.x_to || to <= area.x_from) continue;
    const size_t first = PlotColumn(area, from);
    const size_t end = to >= area.x_to ? area.columns : PlotColumn(area, to);
    const size_t start = std::max(column, first);
    // A revision within one column of another is not drawn.
    if (end <= start) continue;
    line.Add(std::string(start - column, ' '));
    column = start;
    const auto known = bits.find(revision.number());
    const Shade shade = ShadeOf(known == bits.end() ? GemmBits() : known->second);
    const char* const fill = area.utf8 ? shade.utf8 : shade.ascii;
    const std::string what = i == 0
                                 ? RecipeText(revision.recipe())
                                 : RecipeChangeText(effective[i - 1].recipe(), revision.recipe());
    const std::string number = absl::StrCat("r", revision.number());
    std::string name = absl::StrCat(number, " ", what);
    if (!area.utf8) name = AsciiText(name);
    const size_t room = end - column;
    const bool bordered = column > 0;
    if (bordered) line.Add(area.utf8 ? "│" : "|", Ink::kFaint);
    size_t left = room - (bordered ? 1 : 0);
    // The name if it fits with some of the shade on both sides, else its number.
    for (const std::string& text : {name, number}) {
      if (WidthOf(text) + 4 > left) continue;
      line.Add(fill, shade.ink).Add(absl::StrCat(" ", text, " "), Ink::kStrong);
      left -= WidthOf(text) + 3;
      break;
    }
    for (; left > 0; --left) line.Add(fill, shade.ink);
    column = end;
  }
  return line;
}

}  // namespace nibble
