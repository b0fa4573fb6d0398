#include "client/local/recipe_flags.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "recipe/fields.h"

namespace nibble {
namespace {

absl::StatusOr<std::vector<FieldSetting>> Split(const std::vector<std::string>& texts,
                                                const char* name) {
  std::vector<FieldSetting> settings;
  for (const std::string& text : texts) {
    const absl::StatusOr<FieldSetting> setting = SplitFieldSetting(text);
    if (!setting.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ": ", std::string(setting.status().message())));
    }
    settings.push_back(*setting);
  }
  return settings;
}

}  // namespace

absl::StatusOr<LayerRule> ParseLayerRule(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer: '", text, "' is not SELECTOR:FIELD=VALUE, such as 'last 4 blocks:fprop=bf16'"));
  }
  absl::StatusOr<std::vector<FieldSetting>> settings =
      Split(absl::StrSplit(text.substr(colon + 1), ','), "layer");
  if (!settings.ok()) return settings.status();
  return LayerRule{text.substr(0, colon), *std::move(settings)};
}

absl::StatusOr<Recipe> ParseRecipeChange(const std::vector<std::string>& settings,
                                         const std::vector<std::string>& rules,
                                         const char* settings_name) {
  Recipe change{.preset = ""};
  absl::StatusOr<std::vector<FieldSetting>> set = Split(settings, settings_name);
  if (!set.ok()) return set.status();
  change.set = *std::move(set);
  for (const std::string& text : rules) {
    absl::StatusOr<LayerRule> rule = ParseLayerRule(text);
    if (!rule.ok()) return rule.status();
    change.layers.push_back(*std::move(rule));
  }
  return change;
}

}  // namespace nibble
