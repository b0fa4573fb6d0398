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
#include "absl/strings/str_split.h"
#include "client/shell/command_line.h"
#include "client/shell/nouns.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "job/job_spec.h"
#include "job/schedule.h"
#include "model/outline.h"
#include "recipe/recipe.h"
#include "recipe/render.h"
#include "recipe/timeline.h"

namespace nibble {
namespace {

struct RevisionReport {
  int64_t number = 0;
  int64_t first_step = 0;
  std::string reason;
  std::vector<std::string> changes;  // from the previous revision, one line each
};

struct JobReport {
  JobSpec spec;
  int64_t parameters = 0;
  int64_t quantised_layers = 0;  // in the first revision
  int64_t layers = 0;
  int64_t decay_first_step = 0;
  std::vector<RevisionReport> revisions;
  std::string data;  // its files, if they were looked at
};

bool Quantises(const LayerRecipe& layer) {
  return std::any_of(layer.operand.begin(), layer.operand.end(),
                     [](const OperandFormat& operand) { return operand.has_value(); });
}

// "step 300 (80 % of the run)"
std::string StepText(const JobSpec& spec, int64_t step) {
  return absl::StrFormat(
      "step %d (%.3g %% of the run)", step,
      100.0 * static_cast<double>(step) / static_cast<double>(spec.training.steps));
}

std::string WeightsText(const InitSpec& init) {
  const std::string whose = init.job.empty() ? init.path : absl::StrCat("job ", init.job);
  return init.step < 0 ? absl::StrCat("from the newest valid checkpoint of ", whose)
                       : absl::StrCat("from the checkpoint of step ", init.step, " of ", whose);
}

std::string ScheduleText(const JobReport& report) {
  const OptimizerSpec& optimizer = report.spec.optimizer;
  std::string text =
      absl::StrFormat("%s: %d warm-up steps to %g", std::string(ChoiceName(optimizer.schedule)),
                      optimizer.warmup_steps, optimizer.lr);
  if (report.decay_first_step < report.spec.training.steps) {
    absl::StrAppendFormat(&text, ", decays to %g from %s", optimizer.final_lr,
                          StepText(report.spec, report.decay_first_step));
  }
  return text;
}

std::string ValidationText(const JobSpec& spec) {
  if (spec.training.validate_every == 0) return "never";
  std::string on;
  for (const ValidationSource& source : spec.data.validation) {
    absl::StrAppend(&on, on.empty() ? "" : ", ", source.name);
  }
  if (on.empty()) {
    on = absl::StrFormat("%g %% of the training texts' documents",
                         100 * spec.data.validation_fraction);
  }
  return absl::StrCat("every ", spec.training.validate_every, " steps on ", on);
}

// The actions of the guards, and the fields that those that promote or roll back use.
std::string GuardsText(const JobSpec& spec) {
  const GuardSpec& guards = spec.guards;
  bool promotes = guards.non_finite == NonFinitePolicy::kPromote;
  std::string text =
      absl::StrCat("non_finite: ", std::string(ChoiceName(guards.non_finite)), " (then ",
                   std::string(ChoiceName(guards.after_skips)), " after ", guards.max_skips, ")");
  const auto add = [&](const char* name, auto policy) {
    absl::StrAppend(&text, ", ", name, ": ", std::string(ChoiceName(policy)));
    promotes |= policy == decltype(policy)::kPromote;
  };
  add("spike", guards.spike);
  add("gradient_norm", guards.gradient_norm);
  add("relative_error", guards.relative_error);
  add("underflow", guards.underflow);
  add("clipped", guards.clipped);
  if (promotes) absl::StrAppend(&text, "; promotions of ", guards.promote_steps, " steps");
  if (RollsBack(guards)) {
    absl::StrAppend(&text, "; at most ", guards.max_rollbacks, " rollbacks in a row");
    if (UpdatesRollBack(guards) && UpdatesRollBackToBf16(guards)) {
      absl::StrAppend(&text, ", with '", PromotedLayers(guards), "' in BF16");
    }
    if (UpdatesRollBack(guards) && guards.rollback_lr_scale != 1) {
      absl::StrAppend(&text, ", with the learning rate times ", guards.rollback_lr_scale);
    }
    if (OperandsRollBack(guards)) absl::StrAppend(&text, ", with the layers found in BF16");
  }
  return text;
}

// Summarises a spec. InvalidArgument if it is not valid.
absl::StatusOr<JobReport> MakeJobReport(const JobSpec& spec) {
  NIBBLE_RETURN_IF_ERROR(Validate(spec));
  NIBBLE_ASSIGN_OR_RETURN(const Outline outline, MakeOutline(spec.model));
  JobReport report = {.spec = spec,
                      .parameters = outline.parameters(),
                      .layers = static_cast<int64_t>(outline.linears.size()),
                      .decay_first_step = DecayFirstStep(spec.optimizer, spec.training.steps)};
  ResolvedRecipe before;
  const Timeline timeline = MakeTimeline(spec);
  for (const Revision& revision : timeline.revisions()) {
    NIBBLE_ASSIGN_OR_RETURN(
        ResolvedRecipe resolved,
        Resolve(revision.recipe, outline, MicroBatch(spec) * spec.data.sequence));
    RevisionReport reported = {
        .number = revision.number, .first_step = revision.first_step, .reason = revision.reason};
    if (before.layers.empty()) {
      report.quantised_layers =
          std::count_if(resolved.layers.begin(), resolved.layers.end(), Quantises);
    } else {
      NIBBLE_ASSIGN_OR_RETURN(const RecipeDiff diff, Diff(before, resolved, outline));
      reported.changes = absl::StrSplit(DiffText(diff, outline), '\n', absl::SkipEmpty());
    }
    report.revisions.push_back(std::move(reported));
    before = std::move(resolved);
  }
  return report;
}

std::string JobReportText(const JobReport& report) {
  const JobSpec& spec = report.spec;
  TextList list(12);
  list.Add("job", spec.name);
  list.Add("model", absl::StrFormat("%s, %d parameters in %d blocks", spec.model.name,
                                    report.parameters, spec.model.blocks()));
  if (spec.init_from.any()) list.Add("weights", WeightsText(spec.init_from));
  list.Add("tokens",
           absl::StrFormat(
               "%d in %d steps of %d (%d sequences of %d); %.3g per parameter", TotalTokens(spec),
               spec.training.steps, TokensPerStep(spec), spec.training.batch, spec.data.sequence,
               static_cast<double>(TotalTokens(spec)) / static_cast<double>(report.parameters)));
  list.Add("ranks",
           absl::StrFormat("%d on %s, %d sequences per micro-batch", spec.resources.ranks,
                           std::string(ChoiceName(spec.resources.device)), MicroBatch(spec)));
  list.Add("rate", ScheduleText(report));
  list.Add("validation", ValidationText(spec));
  list.Add("guards", GuardsText(spec));
  list.Add("output", OutputDirectory(spec));
  if (!report.data.empty()) list.Add("data", report.data);
  list.Add("recipe", absl::StrFormat("%s, %d of %d linear layers quantised", spec.recipe.preset,
                                     report.quantised_layers, report.layers));
  for (const RevisionReport& revision : report.revisions) {
    list.Add(absl::StrCat("revision ", revision.number),
             absl::StrCat("from ", StepText(spec, revision.first_step),
                          revision.reason.empty() ? "" : ": ", revision.reason));
    for (const std::string& change : revision.changes) list.Add("", change);
  }
  return absl::StrCat("valid\n", list.Text());
}

std::string JobReportJson(const JobReport& report) {
  const JobSpec& spec = report.spec;
  nlohmann::ordered_json out;
  out["valid"] = true;
  out["name"] = spec.name;
  out["model"] = spec.model.name;
  out["parameters"] = report.parameters;
  if (spec.init_from.any()) {
    const InitSpec& init = spec.init_from;
    out["init_from"] = {
        {init.job.empty() ? "path" : "job", init.job.empty() ? init.path : init.job},
        {"step", init.step}};
  }
  out["steps"] = spec.training.steps;
  out["tokens_per_step"] = TokensPerStep(spec);
  out["tokens"] = TotalTokens(spec);
  out["ranks"] = spec.resources.ranks;
  out["micro_batch"] = MicroBatch(spec);
  out["decay_first_step"] = report.decay_first_step;
  out["output"] = OutputDirectory(spec);
  if (!report.data.empty()) out["data"] = report.data;
  out["layers"] = report.layers;
  out["quantised_layers"] = report.quantised_layers;
  out["revisions"] = nlohmann::ordered_json::array();
  for (const RevisionReport& revision : report.revisions) {
    out["revisions"].push_back({{"number", revision.number},
                                {"first_step", revision.first_step},
                                {"reason", revision.reason},
                                {"changes", revision.changes}});
  }
  return JsonText(out);
}

absl::StatusOr<Reply> ValidateFile(const std::string& path, const DataCheck& check_data) {
  NIBBLE_ASSIGN_OR_RETURN(const JobSpec spec, ReadJobSpec(path));
  NIBBLE_ASSIGN_OR_RETURN(JobReport report, MakeJobReport(spec));
  if (check_data) {
    NIBBLE_ASSIGN_OR_RETURN(report.data, check_data(spec));
  }
  return Reply{.text = JobReportText(report), .json = JobReportJson(report)};
}

struct Flags {
  std::string file;
  bool data = false;
  std::string print = "table";
};

}  // namespace

void AddJobCommand(Command app, int& exit_code, DataCheck check_data) {
  auto flags = std::make_shared<Flags>();
  const Command job = NounOf(app, "job", "Jobs: their specs, and their runs in a cluster");

  const Command defaults = job.AddSubcommand(
      "show-defaults", "Print a spec with every field, its default and its meaning");
  defaults.OnParsed([flags, &exit_code] {
    exit_code = Finish("job show-defaults", flags->print, Reply{.text = DefaultsYaml()});
  });

  const Command validate = job.AddSubcommand(
      "validate", "Check a spec: report every problem with its line, or summarise the job");
  validate.Add("FILE", flags->file, "a job spec in YAML; -: stdin").Required();
  if (check_data) {
    validate.AddFlag("--data", flags->data,
                     "also open the files of its data, as seen from this machine and directory: "
                     "paths, formats, tokenizer, vocabulary");
  }
  AddOutputOption(validate, flags->print);
  validate.OnParsed([flags, check_data = std::move(check_data), &exit_code] {
    exit_code = Finish("job validate", flags->print,
                       ValidateFile(flags->file, flags->data ? check_data : nullptr));
  });
}

}  // namespace nibble
