#include "client/local/local_commands.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/local/training_plan.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "model/mixers.h"
#include "model/model_spec.h"
#include "model/outline.h"

namespace nibble {
namespace {

struct ModelReport {
  ModelSpec spec;
  int64_t linears = 0;
  int64_t parameters = 0;
  std::vector<PartCount> parts;
  int64_t sequence = 0;
  FlopsPerToken flops;
  TrainingPlanReply training;
};

using Json = nlohmann::ordered_json;

constexpr const char* kCounts[] = {"", " K", " M", " B", " T"};
constexpr const char* kOperations[] = {"", " K", " M", " G", " T", " P"};

// Four digits: "12.31 B", "354.8 M".
std::string Scaled(double value, std::span<const char* const> units) {
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < units.size()) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat("%.4g%s", value, units[unit]);
}

std::string Count(int64_t value) { return Scaled(static_cast<double>(value), kCounts); }

// "*- x 12" if the pattern repeats one unit, else the pattern.
std::string ShortPattern(const std::string& pattern) {
  for (size_t unit = 1; unit <= pattern.size() / 2; ++unit) {
    if (pattern.size() % unit != 0) continue;
    // A string has period `unit` if it equals itself shifted by `unit`.
    if (std::equal(pattern.begin() + static_cast<int64_t>(unit), pattern.end(), pattern.begin())) {
      return absl::StrCat(pattern.substr(0, unit), " x ", pattern.size() / unit);
    }
  }
  return pattern;
}

bool Has(const ModelSpec& spec, char symbol) {
  return spec.pattern.find(symbol) != std::string::npos;
}

std::string SpecText(const ModelSpec& spec, int64_t linears) {
  TextList list(13);
  std::string mixers;
  for (const MixerKind* mixer : AllMixerKinds()) {
    const int64_t blocks = std::count(spec.pattern.begin(), spec.pattern.end(), mixer->symbol);
    if (blocks == 0) continue;
    absl::StrAppend(&mixers, mixers.empty() ? "" : ", ", blocks, " ", std::string(mixer->name));
  }
  list.Add("model", spec.name);
  list.Add("pattern", spec.pattern);
  list.Add("blocks", absl::StrCat(spec.blocks(), ": ", mixers));
  list.Add("sizes", absl::StrCat("d_model ", spec.d_model, ", vocab ", spec.vocab));
  list.Add("norm",
           absl::StrFormat("%s, eps %g", std::string(NormKindName(spec.norm)), spec.norm_eps));
  std::string positions(PositionsName(spec.positions));
  if (spec.positions == Positions::kRope) {
    absl::StrAppend(&positions, ", theta ", spec.rope_theta);
  } else if (spec.positions == Positions::kLearned) {
    absl::StrAppend(&positions, ", ", spec.max_positions);
  }
  list.Add("positions", positions);
  list.Add("biases", spec.biases ? "yes" : "no");
  list.Add("head", spec.tied_head ? "tied to the embedding" : "untied");
  if (Has(spec, '*')) {
    list.Add("attention", absl::StrCat(spec.heads, " query heads, ", spec.kv_heads,
                                       " key-value heads, dimension ", spec.head_dim));
  }
  if (Has(spec, '-')) {
    list.Add("mlp",
             absl::StrCat("d_ff ", spec.d_ff, ", ", std::string(ActivationName(spec.activation))));
  }
  if (Has(spec, 'M')) {
    list.Add("mamba", absl::StrCat(spec.mamba_heads, " heads, dimension ", spec.mamba_head_dim,
                                   ", ", spec.mamba_groups, " groups, state ", spec.mamba_state,
                                   ", convolution ", spec.conv_width, ", chunk ", spec.chunk));
  }
  list.Add("linears", absl::StrCat(linears));
  return list.Text();
}

void AppendParameters(std::string& out, const ModelReport& report) {
  absl::StrAppendFormat(&out, "\n%-24s %16d  %s\n", "parameters", report.parameters,
                        Count(report.parameters));
  for (const PartCount& part : report.parts) {
    absl::StrAppendFormat(
        &out, "  %-22s %16d  %5.1f %%\n", part.part, part.parameters,
        100.0 * static_cast<double>(part.parameters) / static_cast<double>(report.parameters));
  }
}

void AppendFlops(std::string& out, const ModelReport& report) {
  const FlopsPerToken& flops = report.flops;
  absl::StrAppendFormat(&out, "\nFLOPs per token, sequences of %d\n", report.sequence);
  const auto row = [&out](const char* name, double value) {
    absl::StrAppendFormat(&out, "  %-22s %16s\n", name, Scaled(value, kOperations));
  };
  row("linears", flops.linears);
  row("attention", flops.attention);
  row("scan", flops.scan);
  row("head", flops.head);
  row("forward", flops.forward());
  row("training", flops.training());
}

// Every field, by its name in ModelSpec.
Json SpecJson(const ModelSpec& spec) {
  return {{"name", spec.name},
          {"pattern", spec.pattern},
          {"vocab", spec.vocab},
          {"d_model", spec.d_model},
          {"norm", std::string(NormKindName(spec.norm))},
          {"norm_eps", spec.norm_eps},
          {"positions", std::string(PositionsName(spec.positions))},
          {"rope_theta", spec.rope_theta},
          {"max_positions", spec.max_positions},
          {"biases", spec.biases},
          {"tied_head", spec.tied_head},
          {"d_ff", spec.d_ff},
          {"activation", std::string(ActivationName(spec.activation))},
          {"heads", spec.heads},
          {"kv_heads", spec.kv_heads},
          {"head_dim", spec.head_dim},
          {"mamba_heads", spec.mamba_heads},
          {"mamba_head_dim", spec.mamba_head_dim},
          {"mamba_groups", spec.mamba_groups},
          {"mamba_state", spec.mamba_state},
          {"conv_width", spec.conv_width},
          {"chunk", spec.chunk},
          {"init_std", spec.init_std},
          {"scale_output_init", spec.scale_output_init}};
}

// InvalidArgument, naming the field, its value and the bound, if the spec is not valid, the
// sequence is longer than the learned positions, or PlanTraining() refuses.
absl::StatusOr<ModelReport> MakeModelReport(const ModelSpec& spec, int64_t sequence,
                                            const TrainingFlags& training) {
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec));
  if (spec.positions == Positions::kLearned && sequence > spec.max_positions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence: ", sequence, " is over the model's max_positions, ", spec.max_positions));
  }
  NIBBLE_ASSIGN_OR_RETURN(TrainingPlanReply plan, PlanTraining(outline, sequence, training));
  return ModelReport{.spec = spec,
                     .linears = static_cast<int64_t>(outline.linears.size()),
                     .parameters = outline.parameters(),
                     .parts = ParametersByPart(outline),
                     .sequence = sequence,
                     .flops = CountFlops(outline, sequence),
                     .training = std::move(plan)};
}

std::string ModelReportText(const ModelReport& report) {
  std::string out = SpecText(report.spec, report.linears);
  AppendParameters(out, report);
  AppendFlops(out, report);
  return absl::StrCat(out, "\n", report.training.text);
}

// Exact counts: parameters, operations, bytes.
std::string ModelReportJson(const ModelReport& report) {
  Json parts;
  for (const PartCount& part : report.parts) parts[part.part] = part.parameters;
  const FlopsPerToken& flops = report.flops;
  const auto whole = [](double value) { return static_cast<int64_t>(value + 0.5); };
  Json json = {{"spec", SpecJson(report.spec)},
               {"blocks", report.spec.blocks()},
               {"linears", report.linears},
               {"parameters", report.parameters},
               {"parameters_by_part", parts},
               {"sequence", report.sequence},
               {"flops_per_token",
                {{"linears", whole(flops.linears)},
                 {"attention", whole(flops.attention)},
                 {"scan", whole(flops.scan)},
                 {"head", whole(flops.head)},
                 {"forward", whole(flops.forward())},
                 {"training", whole(flops.training())}}}};
  json.update(report.training.json);
  return JsonText(json);
}

struct ModelFlags {
  std::string model;
  int64_t sequence = 0;  // 0: the model's default
  TrainingFlags training;
  std::string print = "table";
};

absl::StatusOr<Reply> Presets(const ModelFlags&) {
  TextTable table({"model", "parameters", "d_model", "vocab", "blocks", "pattern"});
  Json models = Json::array();
  for (const std::string& name : ModelPresetNames()) {
    NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset(name));
    NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec));
    const int64_t parameters = outline.parameters();
    table.Add({spec.name, Count(parameters), absl::StrCat(spec.d_model), absl::StrCat(spec.vocab),
               absl::StrCat(spec.blocks()), ShortPattern(spec.pattern)});
    models.push_back({{"name", spec.name},
                      {"parameters", parameters},
                      {"d_model", spec.d_model},
                      {"vocab", spec.vocab},
                      {"blocks", spec.blocks()},
                      {"pattern", spec.pattern}});
  }
  return Reply{.text = table.Text(), .json = JsonText(models)};
}

absl::StatusOr<Reply> Show(const ModelFlags& flags) {
  NIBBLE_ASSIGN_OR_RETURN(const ModelSpec spec, ModelPreset(flags.model));
  NIBBLE_ASSIGN_OR_RETURN(
      const ModelReport report,
      MakeModelReport(spec, flags.sequence == 0 ? DefaultSequence(spec) : flags.sequence,
                      flags.training));
  return Reply{.text = ModelReportText(report), .json = ModelReportJson(report)};
}

}  // namespace

void AddModelCommand(Command app, int& exit_code) {
  auto flags = std::make_shared<ModelFlags>();
  const Command model = NounOf(app, "model", "Models: the presets, their sizes and costs");
  const auto add = [&](const char* name, const char* help,
                       absl::StatusOr<Reply> (*run)(const ModelFlags&)) {
    const Command verb = model.AddSubcommand(name, help);
    AddOutputOption(verb, flags->print);
    verb.OnParsed([flags, run, &exit_code, command = absl::StrCat("model ", name)] {
      exit_code = Finish(command, flags->print, run(*flags));
    });
    return verb;
  };
  add("presets", "List the model presets", Presets);

  const Command show = add("show",
                           "Describe a model: pattern, sizes, parameters, operations per token, "
                           "and what training takes: "
                           "memory per rank, and with --nodes bytes and time of a step",
                           Show);
  show.Add("MODEL", flags->model, "a preset; see `nibble model presets`").Required();
  show.Add("--sequence", flags->sequence,
           "tokens of a sequence; default: 2048, or the maximum of learned positions")
      .AtLeast(1);
  AddTrainingOptions(show, flags->training);
  show.Footer(
      "Example: nibble model show nemotron-h-12b --ranks 8 --device-memory 141GB --sequence 8192");
}

}  // namespace nibble
