#include "client/remote/recipe_message.h"

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

using Settings = google::protobuf::RepeatedPtrField<v1::FieldSetting>;

void AddSettings(const std::vector<FieldSetting>& settings, Settings& messages) {
  for (const FieldSetting& setting : settings) {
    v1::FieldSetting& message = *messages.Add();
    message.set_field(setting.field);
    message.set_value(setting.value);
  }
}

void AppendSettings(const Settings& settings, const char* between, std::string& text) {
  const char* before = "";
  for (const v1::FieldSetting& setting : settings) {
    absl::StrAppend(&text, before, setting.field(), "=", setting.value());
    before = between;
  }
}

}  // namespace

v1::RecipeChange ChangeMessage(const Recipe& change) {
  v1::RecipeChange message;
  AddSettings(change.set, *message.mutable_set());
  for (const LayerRule& rule : change.layers) {
    v1::LayerRule& layer = *message.add_layers();
    layer.set_match(rule.match);
    AddSettings(rule.set, *layer.mutable_set());
  }
  return message;
}

std::string RecipeText(const v1::Recipe& recipe) {
  std::string text = recipe.preset();
  if (!recipe.set().empty()) absl::StrAppend(&text, ", ");
  AppendSettings(recipe.set(), ", ", text);
  for (const v1::LayerRule& rule : recipe.layers()) {
    absl::StrAppend(&text, ", ", rule.match(), ":");
    AppendSettings(rule.set(), ",", text);
  }
  return text;
}

}  // namespace nibble
