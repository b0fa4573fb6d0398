#include "client/shell/spec_commands.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "recipe/cost.h"
#include "recipe/fields.h"
#include "recipe/presets.h"
#include "recipe/recipe.h"
#include "recipe/render.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

struct Flags {
  std::string preset;
  std::string other;  // of diff
  std::string model;
  std::vector<std::string> set;
  std::vector<std::string> layer;
  int64_t tokens = 0;
  int64_t sequence = 0;  // 0: the model's default
  bool each = false;
  std::string print = "table";

  bool json() const { return ForPrograms(print); }
};

absl::StatusOr<Recipe> PresetRecipe(const std::string& preset) {
  NIBBLE_RETURN_IF_ERROR(FindPreset(preset).status());
  return Recipe{.preset = preset};
}

// The preset, overridden by --set and --layer.
absl::StatusOr<Recipe> RecipeOf(const std::string& preset, const Flags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe base, PresetRecipe(preset));
  absl::StatusOr<Recipe> recipe = ParseRecipeChange(flags.set, flags.layer);
  if (recipe.ok()) recipe->preset = base.preset;
  return recipe;
}

absl::StatusOr<Outline> OutlineOf(const Flags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset(flags.model));
  return MakeOutline(spec);
}

// ---- The text that each verb prints ----------------------------------------------------------

absl::StatusOr<std::string> Presets(const Flags& flags) {
  Json json = Json::array();
  size_t width = 0;
  for (const Preset& preset : AllPresets()) {
    json.push_back({{"name", preset.name}, {"summary", preset.summary}});
    width = std::max(width, preset.name.size());
  }
  if (flags.json()) return JsonText(json);
  std::string table;
  for (const Preset& preset : AllPresets()) {
    absl::StrAppendFormat(&table, "%-*s  %s\n", static_cast<int>(width), preset.name,
                          preset.summary);
  }
  return table;
}

absl::StatusOr<std::string> Fields(const Flags& flags) {
  if (!flags.json()) return FieldsHelp();
  Json json = Json::array();
  for (const FieldInfo& field : AllFields()) {
    json.push_back({{"name", field.name}, {"values", field.values}, {"meaning", field.meaning}});
  }
  return JsonText(json);
}

absl::StatusOr<std::string> Show(const Flags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe recipe, RecipeOf(flags.preset, flags));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, OutlineOf(flags));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe resolved, Resolve(recipe, outline, flags.tokens));
  if (!flags.json()) {
    return RenderTable(resolved, outline, flags.each ? Grouping::kNone : Grouping::kEqual);
  }
  absl::StatusOr<std::string> json = RenderJson(resolved, outline);
  if (json.ok()) json->push_back('\n');
  return json;
}

absl::StatusOr<std::string> Difference(const Flags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe before, PresetRecipe(flags.preset));
  NIBBLE_ASSIGN_OR_RETURN(const Recipe after, RecipeOf(flags.other, flags));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, OutlineOf(flags));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe a, Resolve(before, outline, 0));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe b, Resolve(after, outline, 0));
  NIBBLE_ASSIGN_OR_RETURN(const RecipeDiff diff, Diff(a, b, outline));
  return flags.json() ? DiffJson(diff, outline) + "\n" : DiffText(diff, outline);
}

absl::StatusOr<std::string> Cost(const Flags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe recipe, RecipeOf(flags.preset, flags));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, OutlineOf(flags));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe resolved, Resolve(recipe, outline, 0));
  const int64_t sequence = flags.sequence == 0 ? DefaultSequence(outline.spec) : flags.sequence;
  NIBBLE_ASSIGN_OR_RETURN(const GemmCost cost, CostOf(resolved, outline, sequence));
  NIBBLE_ASSIGN_OR_RETURN(
      const GemmCost whole,
      CostOf(ResolvedRecipe{std::vector<LayerRecipe>(outline.linears.size())}, outline, sequence));
  struct Row {
    const char* name;
    double share, of;
  };
  const Row rows[] = {{"fprop", cost.fprop, whole.fprop},
                      {"dgrad", cost.dgrad, whole.dgrad},
                      {"wgrad", cost.wgrad, whole.wgrad},
                      {"attention", cost.attention, whole.attention},
                      {"total", cost.total(), whole.total()}};
  if (flags.json()) {
    Json json = {{"preset", flags.preset}, {"model", flags.model}, {"sequence", sequence}};
    for (const Row& row : rows) json["cost"][row.name] = row.share;
    for (const Row& row : rows) json["cost_16bit"][row.name] = row.of;
    return JsonText(json);
  }
  std::string table = absl::StrFormat("%-9s  %7s  %7s\n", "product", "cost", "16 bit");
  for (const Row& row : rows) {
    absl::StrAppendFormat(&table, "%-9s  %6.1f%%  %6.1f%%\n", row.name, 100 * row.share,
                          100 * row.of);
  }
  return table;
}

// ---- The command line ------------------------------------------------------------------------

using Verb = absl::StatusOr<std::string> (*)(const Flags&);

class RecipeCommand {
 public:
  RecipeCommand(Command app, int& exit_code, TakeOver take_over)
      : command_(NounOf(app, "recipe", "Recipes: what they say, and those of jobs")),
        exit_code_(exit_code),
        take_over_(std::move(take_over)) {}

  Command Add(const char* name, const char* help, Verb verb) {
    Command sub = command_.AddSubcommand(name, help);
    AddOutputOption(sub, flags_->print);
    sub.OnParsed(
        [flags = flags_, name, verb, sub, take_over = take_over_, &exit_code = exit_code_] {
          const auto taken = TakenOver(take_over, {sub, flags->preset, flags->print});
          if (taken) {
            exit_code = *taken;
            return;
          }
          exit_code = Finish(absl::StrCat("recipe ", name), InFormat(flags->print, verb(*flags)));
        });
    return sub;
  }

  void AddModel(Command sub) {
    sub.Add("--model", flags_->model, "preset of the model; see `nibble model presets`").Required();
  }

  // The options that override fields of `preset`.
  void AddChanges(Command sub, const char* preset) {
    sub.Add("--set", flags_->set,
            absl::StrCat("FIELD=VALUE over ", preset, "; see `nibble recipe fields`"))
        .OneValueEach();
    sub.Add("--layer", flags_->layer,
            absl::StrCat("SELECTOR:FIELD=VALUE[,FIELD=VALUE]... over ", preset,
                         ", such as 'last 4 blocks:fprop=bf16'"))
        .OneValueEach();
  }

  Flags& flags() { return *flags_; }

 private:
  std::shared_ptr<Flags> flags_ = std::make_shared<Flags>();
  Command command_;
  int& exit_code_;
  TakeOver take_over_;
};

}  // namespace

void AddRecipeCommandWith(Command app, int& exit_code, TakeOver take_over) {
  RecipeCommand command(app, exit_code, std::move(take_over));
  command.Add("presets", "The recipes that have names", Presets);
  command.Add("fields", "Every field that a recipe can set", Fields);

  Command show = command.Add("show", "The format of every operand of every linear layer", Show);
  show.Add("PRESET", command.flags().preset, "see `nibble recipe presets`").Required();
  show.Footer("Example: nibble recipe show nvfp4 --model tiny-hybrid --set fprop=bf16");
  command.AddModel(show);
  command.AddChanges(show, "PRESET");
  show.Add("--tokens", command.flags().tokens,
           "rows that a layer sees at once, to check blocks against; 0: not checked")
      .AtLeast(0)
      .ShowDefault();
  show.AddFlag("--each", command.flags().each, "a row per layer, also where neighbours are alike");

  Command diff = command.Add("diff", "What differs between two recipes for one model", Difference);
  diff.Add("A", command.flags().preset, "preset to start from").Required();
  diff.Add("B", command.flags().other, "preset to compare with it").Required();
  command.AddModel(diff);
  command.AddChanges(diff, "B");

  Command cost = command.Add(
      "cost", "Theoretical time of the matrix products against 16 bit (FP8 1/2, FP4 1/4)", Cost);
  cost.Add("PRESET", command.flags().preset, "see `nibble recipe presets`").Required();
  command.AddModel(cost);
  command.AddChanges(cost, "PRESET");
  cost.Add("--sequence", command.flags().sequence,
           "tokens of a sequence; 2048 by default, or what learned positions allow")
      .AtLeast(1);
}

}  // namespace nibble
