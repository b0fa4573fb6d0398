#include "client/local/recipe_command.h"

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
#include "client/local/finish.h"
#include "client/local/json_text.h"
#include "client/local/model_report.h"
#include "client/local/noun.h"
#include "client/local/number_check.h"
#include "client/local/output_format.h"
#include "client/local/recipe_flags.h"
#include "model/model_spec.h"
#include "model/outline.h"
#include "recipe/cost.h"
#include "recipe/diff.h"
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
  const absl::StatusOr<const Preset*> found = FindPreset(preset);
  if (!found.ok()) return found.status();
  return Recipe{.preset = preset};
}

// The preset with --set and --layer over it.
absl::StatusOr<Recipe> RecipeOf(const std::string& preset, const Flags& flags) {
  const absl::StatusOr<Recipe> base = PresetRecipe(preset);
  if (!base.ok()) return base.status();
  absl::StatusOr<Recipe> recipe = ParseRecipeChange(flags.set, flags.layer);
  if (recipe.ok()) recipe->preset = base->preset;
  return recipe;
}

absl::StatusOr<Outline> OutlineOf(const Flags& flags) {
  const absl::StatusOr<ModelSpec> spec = ModelPreset(flags.model);
  if (!spec.ok()) return spec.status();
  return MakeOutline(*spec);
}

// ---- the verbs: what each prints ------------------------------------------------------------

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
  const absl::StatusOr<Recipe> recipe = RecipeOf(flags.preset, flags);
  if (!recipe.ok()) return recipe.status();
  const absl::StatusOr<Outline> outline = OutlineOf(flags);
  if (!outline.ok()) return outline.status();
  const absl::StatusOr<ResolvedRecipe> resolved = Resolve(*recipe, *outline, flags.tokens);
  if (!resolved.ok()) return resolved.status();
  if (!flags.json()) {
    return RenderTable(*resolved, *outline, flags.each ? Grouping::kNone : Grouping::kEqual);
  }
  absl::StatusOr<std::string> json = RenderJson(*resolved, *outline);
  if (json.ok()) json->push_back('\n');
  return json;
}

absl::StatusOr<std::string> Difference(const Flags& flags) {
  const absl::StatusOr<Recipe> before = PresetRecipe(flags.preset);
  if (!before.ok()) return before.status();
  const absl::StatusOr<Recipe> after = RecipeOf(flags.other, flags);
  if (!after.ok()) return after.status();
  const absl::StatusOr<Outline> outline = OutlineOf(flags);
  if (!outline.ok()) return outline.status();
  const absl::StatusOr<ResolvedRecipe> a = Resolve(*before, *outline, 0);
  if (!a.ok()) return a.status();
  const absl::StatusOr<ResolvedRecipe> b = Resolve(*after, *outline, 0);
  if (!b.ok()) return b.status();
  const absl::StatusOr<RecipeDiff> diff = Diff(*a, *b, *outline);
  if (!diff.ok()) return diff.status();
  return flags.json() ? DiffJson(*diff, *outline) + "\n" : DiffText(*diff, *outline);
}

absl::StatusOr<std::string> Cost(const Flags& flags) {
  const absl::StatusOr<Recipe> recipe = RecipeOf(flags.preset, flags);
  if (!recipe.ok()) return recipe.status();
  const absl::StatusOr<Outline> outline = OutlineOf(flags);
  if (!outline.ok()) return outline.status();
  const absl::StatusOr<ResolvedRecipe> resolved = Resolve(*recipe, *outline, 0);
  if (!resolved.ok()) return resolved.status();
  const int64_t sequence = flags.sequence == 0 ? DefaultSequence(outline->spec) : flags.sequence;
  const absl::StatusOr<GemmCost> cost = CostOf(*resolved, *outline, sequence);
  if (!cost.ok()) return cost.status();
  const absl::StatusOr<GemmCost> whole =
      CostOf(ResolvedRecipe{std::vector<LayerRecipe>(outline->linears.size())}, *outline, sequence);
  if (!whole.ok()) return whole.status();
  struct Row {
    const char* name;
    double share, of;
  };
  const Row rows[] = {{"fprop", cost->fprop, whole->fprop},
                      {"dgrad", cost->dgrad, whole->dgrad},
                      {"wgrad", cost->wgrad, whole->wgrad},
                      {"attention", cost->attention, whole->attention},
                      {"total", cost->total(), whole->total()}};
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

// ---- the command line -----------------------------------------------------------------------

using Verb = absl::StatusOr<std::string> (*)(const Flags&);

class RecipeCommand {
 public:
  RecipeCommand(CLI::App& app, int& exit_code, TakeOver take_over)
      : command_(NounOf(app, "recipe", "Recipes: what they say, and those of jobs")),
        exit_code_(exit_code),
        take_over_(std::move(take_over)) {}

  CLI::App* Add(const char* name, const char* help, Verb verb) {
    CLI::App* sub = command_->add_subcommand(name, help);
    AddOutputOption(sub, flags_->print);
    sub->callback(
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

  void AddModel(CLI::App* sub) {
    sub->add_option("--model", flags_->model, "preset of the model; see `nibble model presets`")
        ->required();
  }

  // The fields that go over `preset`.
  void AddChanges(CLI::App* sub, const char* preset) {
    sub->add_option("--set", flags_->set,
                    absl::StrCat("FIELD=VALUE over ", preset, "; see `nibble recipe fields`"))
        ->allow_extra_args(false);
    sub->add_option("--layer", flags_->layer,
                    absl::StrCat("SELECTOR:FIELD=VALUE[,FIELD=VALUE]... over ", preset,
                                 ", such as 'last 4 blocks:fprop=bf16'"))
        ->allow_extra_args(false);
  }

  Flags& flags() { return *flags_; }

 private:
  std::shared_ptr<Flags> flags_ = std::make_shared<Flags>();
  CLI::App* command_;
  int& exit_code_;
  TakeOver take_over_;
};

}  // namespace

void AddRecipeCommand(CLI::App& app, int& exit_code) {
  AddRecipeCommandWith(app, exit_code, nullptr);
}

void AddRecipeCommandWith(CLI::App& app, int& exit_code, TakeOver take_over) {
  RecipeCommand command(app, exit_code, std::move(take_over));
  command.Add("presets", "The recipes that have names", Presets);
  command.Add("fields", "Every field that a recipe can set", Fields);

  CLI::App* show = command.Add("show", "The format of every operand of every linear layer", Show);
  show->add_option("PRESET", command.flags().preset, "see `nibble recipe presets`")->required();
  show->footer("Example: nibble recipe show nvfp4 --model tiny-hybrid --set fprop=bf16");
  command.AddModel(show);
  command.AddChanges(show, "PRESET");
  show->add_option("--tokens", command.flags().tokens,
                   "rows that a layer sees at once, to check blocks against; 0: not checked")
      ->check(WholeFor(command.flags().tokens, 0))
      ->capture_default_str();
  show->add_flag("--each", command.flags().each,
                 "a row per layer, also where neighbours are alike");

  CLI::App* diff =
      command.Add("diff", "What differs between two recipes for one model", Difference);
  diff->add_option("A", command.flags().preset, "preset to start from")->required();
  diff->add_option("B", command.flags().other, "preset to compare with it")->required();
  command.AddModel(diff);
  command.AddChanges(diff, "B");

  CLI::App* cost = command.Add(
      "cost", "Theoretical time of the matrix products against 16 bit (FP8 1/2, FP4 1/4)", Cost);
  cost->add_option("PRESET", command.flags().preset, "see `nibble recipe presets`")->required();
  command.AddModel(cost);
  command.AddChanges(cost, "PRESET");
  cost->add_option("--sequence", command.flags().sequence,
                   "tokens of a sequence; 2048 by default, or what learned positions allow")
      ->check(WholeFor(command.flags().sequence, 1));
}

}  // namespace nibble
