#include "worker/agent/timeline_json.h"

#include <utility>
#include <vector>

#include "recipe/recipe_json.h"
#include "recipe/timeline.h"

namespace nibble {
namespace {

std::vector<FieldSetting> SettingsOf(
    const google::protobuf::RepeatedPtrField<v1::FieldSetting>& messages) {
  std::vector<FieldSetting> settings;
  for (const v1::FieldSetting& message : messages) {
    settings.push_back({message.field(), message.value()});
  }
  return settings;
}

Recipe RecipeOf(const v1::Recipe& message) {
  Recipe recipe = {.preset = message.preset(), .set = SettingsOf(message.set())};
  for (const v1::LayerRule& rule : message.layers()) {
    recipe.layers.push_back({rule.match(), SettingsOf(rule.set())});
  }
  return recipe;
}

}  // namespace

absl::StatusOr<std::string> TimelineJson(
    const google::protobuf::RepeatedPtrField<v1::RecipeRevision>& revisions) {
  std::vector<Revision> values;
  for (const v1::RecipeRevision& message : revisions) {
    values.push_back({.number = message.number(),
                      .first_step = message.first_step(),
                      .author = message.author(),
                      .time_unix_ms = message.time_unix_ms(),
                      .reason = message.reason(),
                      .recipe = RecipeOf(message.recipe()),
                      .refused = message.refused()});
  }
  const absl::StatusOr<Timeline> timeline = Timeline::FromRevisions(std::move(values));
  if (!timeline.ok()) return timeline.status();
  return ToJson(*timeline);
}

}  // namespace nibble
