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
#include "absl/strings/str_join.h"
#include "client/shell/command_line.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/table.h"
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

absl::StatusOr<Recipe> PresetRecipe(const std::string& preset) {
  NIBBLE_RETURN_IF_ERROR(FindPreset(preset).status());
  return Recipe{.preset = preset};
}

// The preset, overridden by --set and --layer.
absl::StatusOr<Recipe> RecipeOf(const std::string& preset, const RecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe base, PresetRecipe(preset));
  NIBBLE_ASSIGN_OR_RETURN(Recipe recipe, ParseRecipeChange(flags.set, flags.layer));
  recipe.preset = base.preset;
  return recipe;
}

absl::StatusOr<Outline> OutlineOf(const RecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset(flags.model));
  return MakeOutline(spec);
}

absl::StatusOr<Reply> Fields(const RecipeFlags&) {
  Json json = Json::array();
  for (const FieldInfo& field : AllFields()) {
    json.push_back({{"name", field.name}, {"values", field.values}, {"meaning", field.meaning}});
  }
  return Reply{.text = FieldsHelp(), .json = JsonText(json)};
}

absl::StatusOr<Reply> Show(const RecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe recipe, RecipeOf(flags.recipe, flags));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, OutlineOf(flags));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe resolved, Resolve(recipe, outline, flags.tokens));
  NIBBLE_ASSIGN_OR_RETURN(const std::string rendered, RenderJson(resolved, outline));
  NIBBLE_ASSIGN_OR_RETURN(
      const std::string table,
      RenderTable(resolved, outline, flags.each ? Grouping::kNone : Grouping::kEqual));
  Json json = Json::parse(rendered);
  json["products"] = Json::array();
  TextTable products({"compute capability", "GEMM", "operands", "layers", "path", "why"});
  for (const ProductRow& row : ProductsOnCards(resolved)) {
    const std::string gemm(LinearGemmName(row.gemm));
    json["products"].push_back({{"compute_capability", row.capability / 10.0},
                                {"gemm", gemm},
                                {"a", row.a},
                                {"b", row.b},
                                {"layers", row.linears},
                                {"path", row.path},
                                {"reason", row.reason}});
    products.Add({CapabilityName(row.capability), gemm, absl::StrCat(row.a, " · ", row.b),
                  absl::StrCat(row.linears), row.path, row.reason});
  }
  const bool quantises = !json["products"].empty();
  return Reply{.text = absl::StrCat(
                   table, quantises ? "\nOn cards (on a CPU every format is emulated):\n" : "",
                   quantises ? products.Text() : ""),
               .json = JsonText(json)};
}

absl::StatusOr<Reply> PresetTable(const RecipeFlags&) {
  Json json = Json::array();
  TextTable table;
  for (const Preset& preset : AllPresets()) {
    json.push_back({{"name", preset.name}, {"summary", preset.summary}});
    table.Add({preset.name, preset.summary});
  }
  return Reply{.text = table.Text(), .json = JsonText(json)};
}

absl::StatusOr<Reply> DiffPresets(const RecipeFlags& flags) {
  if (flags.other.empty()) {
    return Reply{.notes = {"B is required with --model: the second preset"},
                 .exit_code = kExitUsage};
  }
  NIBBLE_ASSIGN_OR_RETURN(const Recipe before, PresetRecipe(flags.recipe));
  NIBBLE_ASSIGN_OR_RETURN(const Recipe after, RecipeOf(flags.other, flags));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, OutlineOf(flags));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe a, Resolve(before, outline, 0));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe b, Resolve(after, outline, 0));
  NIBBLE_ASSIGN_OR_RETURN(const RecipeDiff diff, Diff(a, b, outline, DiffDetail::kFull));
  return Reply{.text = DiffText(diff, outline), .json = DiffJson(diff, outline) + "\n"};
}

// Without a model: the operands of each kind of layer in blocks that are not kept in bf16, and
// which are.
absl::StatusOr<Reply> DiffAnyModel(const RecipeFlags& flags) {
  // Has every kind of layer.
  NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset("nemotron-h-8b"));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec));
  const auto resolve = [&outline](const std::string& preset) {
    return Resolve({.preset = preset, .set = {{"keep", "none"}}, .layers = {}}, outline, 0);
  };
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe a, resolve(flags.recipe));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe b, resolve(flags.other));
  NIBBLE_ASSIGN_OR_RETURN(const RecipeDiff diff, Diff(a, b, outline, DiffDetail::kFull));
  Reply reply;
  Json json = Json::array();
  const auto add = [&](const std::string& field, const std::string& from, const std::string& to,
                       const std::vector<std::string>& kinds) {
    absl::StrAppend(&reply.text, field, ": ", from, " → ", to, kinds.empty() ? "" : " in ",
                    absl::StrJoin(kinds, ", "), "\n");
    json.push_back({{"field", field}, {"from", from}, {"to", to}, {"kinds", kinds}});
  };
  for (const RecipeChangeGroup& group : diff.groups) {
    std::vector<std::string> kinds;
    for (const int64_t layer : group.layers) {
      const std::string& kind = outline.linears[static_cast<size_t>(layer)].kind;
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
    if (group.layers.size() == outline.linears.size()) kinds.clear();
    add(group.field, group.from, group.to, kinds);
  }
  NIBBLE_ASSIGN_OR_RETURN(const Preset* const first, FindPreset(flags.recipe));
  NIBBLE_ASSIGN_OR_RETURN(const Preset* const second, FindPreset(flags.other));
  const std::string from = KeepText(first->keep), to = KeepText(second->keep);
  if (from != to) add("blocks in bf16", from, to, {});
  if (reply.text.empty()) reply.text = "no difference\n";
  reply.json = JsonText(json);
  return reply;
}

bool AreTwoPresets(const RecipeFlags& flags) {
  return flags.to.empty() && FindPreset(flags.recipe).ok() && FindPreset(flags.other).ok();
}

absl::StatusOr<Reply> PresetCost(const RecipeFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const Recipe recipe, RecipeOf(flags.recipe, flags));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, OutlineOf(flags));
  NIBBLE_ASSIGN_OR_RETURN(const ResolvedRecipe resolved, Resolve(recipe, outline, 0));
  const int64_t sequence = flags.sequence == 0 ? DefaultSequence(outline.spec) : flags.sequence;
  NIBBLE_ASSIGN_OR_RETURN(const GemmCost cost, CostOf(resolved, outline, sequence));
  NIBBLE_ASSIGN_OR_RETURN(
      const GemmCost whole,
      CostOf(ResolvedRecipe{std::vector<LayerRecipe>(outline.linears.size())}, outline, sequence));
  const struct {
    const char* name;
    double cost, in_16_bit;
  } rows[] = {{"fprop", cost.fprop, whole.fprop},
              {"dgrad", cost.dgrad, whole.dgrad},
              {"wgrad", cost.wgrad, whole.wgrad},
              {"attention", cost.attention, whole.attention},
              {"total", cost.total(), whole.total()}};
  Json json = {{"preset", flags.recipe}, {"model", flags.model}, {"sequence", sequence}};
  TextTable table({"part", "cost", "16 bit"});
  for (const auto& row : rows) {
    json["cost"][row.name] = row.cost;
    table.Add({row.name, absl::StrFormat("%.1f%%", 100 * row.cost),
               absl::StrFormat("%.1f%%", 100 * row.in_16_bit)});
  }
  for (const auto& row : rows) json["cost_16bit"][row.name] = row.in_16_bit;
  return Reply{.text = table.Text(), .json = JsonText(json)};
}

// ---- The command line ------------------------------------------------------------------------

class RecipeCommand {
 public:
  RecipeCommand(Command app, int& exit_code)
      : noun_(NounOf(app, "recipe", "Recipes of presets and of jobs")), exit_code_(exit_code) {}

  Command Add(const char* name, const char* help, VerbRun<RecipeFlags> run) {
    Command verb = noun_.AddSubcommand(name, help);
    verb.OnParsed([flags = flags_, command = absl::StrCat("recipe ", name), run = std::move(run),
                   &exit_code = exit_code_] {
      exit_code = Finish(command, flags->remote.print, run(*flags));
    });
    return verb;
  }

  Option AddModel(Command verb) {
    return verb.Add("--model", flags_->model, "preset of the model; see `nibble model presets`");
  }

  // The options that override fields of `preset`.
  void AddChanges(Command verb, const char* preset) {
    verb.Add("--set", flags_->set,
             absl::StrCat("FIELD=VALUE that overrides ", preset, "; see `nibble recipe fields`"))
        .OneValueEach();
    verb.Add("--layer", flags_->layer,
             absl::StrCat("SELECTOR:FIELD=VALUE[,FIELD=VALUE]... that overrides ", preset,
                          ", such as 'last 4 blocks:fprop=bf16'"))
        .OneValueEach();
  }

  RecipeFlags& flags() { return *flags_; }
  Command noun() const { return noun_; }

 private:
  std::shared_ptr<RecipeFlags> flags_ = std::make_shared<RecipeFlags>();
  Command noun_;
  int& exit_code_;
};

}  // namespace

Command AddRecipeCommand(Command app, int& exit_code, RecipeSource jobs) {
  RecipeCommand command(app, exit_code);
  RecipeFlags& flags = command.flags();

  const Command list =
      command.Add("presets", "List the recipe presets", [jobs](const RecipeFlags& flags) {
        return flags.remote.server.empty() ? PresetTable(flags) : jobs.presets(flags);
      });
  AddRemoteOptions(list, flags.remote);

  const Command fields = command.Add("fields", "List the fields that a recipe can set", Fields);
  AddOutputOption(fields, flags.remote.print);

  const Command show =
      command.Add("show", "Show the format of every operand of every linear layer", Show);
  show.Add("PRESET", flags.recipe, "a preset; see `nibble recipe presets`").Required();
  AddOutputOption(show, flags.remote.print);
  command.AddModel(show).Required();
  command.AddChanges(show, "PRESET");
  show.Add("--tokens", flags.tokens,
           "rows of a layer's input, to check that blocks divide them; 0: not checked")
      .AtLeast(0)
      .ShowDefault();
  show.AddFlag("--each", flags.each, "one row per layer, also for equal neighbours");
  show.Footer("Example: nibble recipe show nvfp4 --model tiny-hybrid --set fprop=bf16");

  const Command diff = command.Add(
      "diff", "Compare two revisions of a job, or two presets; with --model by its layers",
      [jobs](const RecipeFlags& flags) -> absl::StatusOr<Reply> {
        if (!flags.model.empty()) return DiffPresets(flags);
        return AreTwoPresets(flags) ? DiffAnyModel(flags) : jobs.diff(flags);
      });
  diff.Add("A", flags.recipe, "a job, or the first preset").Required();
  diff.Add("B", flags.other, "its first revision, default: the oldest; or the second preset");
  AddRemoteOptions(diff, flags.remote);
  command.AddModel(diff);
  command.AddChanges(diff, "B");
  diff.Add("TO", flags.to, "of a job: its second revision; default: the latest")
      .Excludes("--model");
  for (const char* option : {"--set", "--layer"}) diff.GetOption(option).Needs("--model");
  diff.Footer("Example: nibble recipe diff nvfp4 mxfp4");

  const Command cost =
      command.Add("cost", "Estimate the time of the GEMMs of a job or a preset, relative to 16 bit",
                  [jobs](const RecipeFlags& flags) {
                    return flags.model.empty() ? jobs.cost(flags) : PresetCost(flags);
                  });
  cost.Add("JOB", flags.recipe, "a job; with --model: a preset").Required();
  AddRemoteOptions(cost, flags.remote);
  command.AddModel(cost);
  command.AddChanges(cost, "the recipe");
  cost.Add("--sequence", flags.sequence,
           "tokens of a sequence; default: 2048, or the maximum of learned positions")
      .AtLeast(1)
      .Needs("--model");
  cost.Add("--revision", flags.revision,
           "of a job: this revision only; default: the whole timeline")
      .AtLeast(1)
      .Excludes("--model");
  cost.Footer("Assumes that a GEMM in FP8 takes 1/2, and in FP4 1/4, of its time in 16 bit.");
  return command.noun();
}

}  // namespace nibble
