#include "job/recipe_fields.h"

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_join.h"
#include "recipe/presets.h"
#include "recipe/selector.h"
#include "recipe/timeline.h"

namespace nibble {
namespace {

constexpr Range<int64_t> kRules = {0, 64};

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : AllPresets()) names.push_back(preset.name);
  return names;
}

Field<Recipe> PresetField() {
  auto field = Leaf<Recipe>("preset", "one of", absl::StrJoin(PresetNames(), ", "), "",
                            "the recipe that the rest goes over");
  field.read = [](const YamlNode& node, const std::string& path, Recipe& recipe,
                  Problems& problems) {
    const std::vector<std::string> names = PresetNames();
    const int index = ReadName(node, path, names, problems);
    if (index >= 0) recipe.preset = names[index];
  };
  field.write = [](const Recipe& recipe) { return YamlNode::Text(recipe.preset); };
  field.check = [](const Recipe& recipe, const std::string& path, Problems& problems) {
    if (!problems.Sound(path)) return;
    const absl::StatusOr<const Preset*> preset = FindPreset(recipe.preset);
    if (!preset.ok()) problems.Add(path, preset.status());
  };
  field.doc.default_value = JobSpec().recipe.preset;
  return field;
}

const Record<LayerRule>& RuleRecord() {
  using S = LayerRule;
  static const auto* const record = [] {
    auto match = Text("match", &S::match, {TextRule::Kind::kLine},
                      "the layers it speaks of: `first 2 blocks`, `last 8 blocks`, `block 3`, "
                      "`blocks 4-7`, `attention.qkv`, `mlp`, `blocks.3.mlp.up`, `mamba.*`, "
                      "`mlp.down in last 8 blocks`, `*`")
                     .Required();
    match.doc.allowed = "a selector that names at least one layer of the model";
    match.check = [](const S& rule, const std::string& path, Problems& problems) {
      if (!problems.Sound(path)) return;
      CheckText(rule.match, path, {TextRule::Kind::kLine}, problems);
      const absl::StatusOr<Selector> selector = Selector::Parse(rule.match);
      if (problems.Sound(path) && !selector.ok()) problems.Add(path, selector.status());
    };
    return new Record<S>{
        .fields = {std::move(match), Settings("set", &S::set, "fields for these layers")}};
  }();
  return *record;
}

Field<PlannedChange> TimeField() {
  using S = PlannedChange;
  auto field = Leaf<S>("at", "time", "step:N, tokens:N, fraction:F, P%, lr-decay", "",
                       "the first step under the change; lr-decay: where the learning rate begins "
                       "to fall")
                   .Required();
  field.read = [](const YamlNode& node, const std::string& path, S& change, Problems& problems) {
    std::string text;
    ReadText(node, path, text, problems);
    if (!problems.Sound(path)) return;
    const absl::StatusOr<EffectiveAt> at = ParseEffectiveAt(text);
    if (at.ok()) {
      change.at = *at;
    } else {
      problems.Add(path, at.status());
    }
  };
  field.write = [](const S& change) { return YamlNode::Text(ToString(change.at)); };
  field.check = [](const S& change, const std::string& path, Problems& problems) {
    if (change.at.kind == EffectiveAt::Kind::kNow) {
      problems.Add(path, "'now' is for running jobs; a spec names a time");
    }
  };
  return field;
}

}  // namespace

const Record<Recipe>& RecipeRecord() {
  using S = Recipe;
  static const auto* const record = new Record<S>{
      .shorthand = "preset",
      .fields = {PresetField(),
                 Settings("set", &S::set, "fields over the preset's, for all layers"),
                 List("layers", &S::layers, RuleRecord(), kRules,
                      "fields for some layers, over those for all; the last that matches wins")}};
  return *record;
}

const Record<PlannedChange>& ChangeRecord() {
  using S = PlannedChange;
  static const auto* const record = new Record<S>{
      .fields = {TimeField(),
                 Settings("set", &S::set, "fields over what holds before, for all layers"),
                 List("layers", &S::layers, RuleRecord(), kRules, "the same for some layers"),
                 Text("reason", &S::reason, {TextRule::Kind::kLine, true},
                      "for people, kept with the revision")}};
  return *record;
}

}  // namespace nibble
