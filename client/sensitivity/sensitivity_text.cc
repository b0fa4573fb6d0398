#include "client/sensitivity/sensitivity_text.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/shell/output.h"
#include "common/counted.h"
#include "common/text/table.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

std::string LossText(double loss) { return absl::StrFormat("%.5f", loss); }
std::string PercentText(double share) { return absl::StrFormat("%.1f %%", 100 * share); }
// "0.01234 ± 0.00056"; "-" for the error of one value.
std::string WithError(const Estimate& estimate) {
  return absl::StrCat(LossText(estimate.mean), " ± ",
                      estimate.error ? LossText(*estimate.error) : "-");
}
std::string ShareText(const std::optional<Estimate>& share) {
  if (!share) return "-";
  if (!share->error) return PercentText(share->mean);
  return absl::StrFormat("%.0f %% ± %.0f", 100 * share->mean, 100 * *share->error);
}
std::string AddedText(double added) { return absl::StrFormat("%+.1f %%", 100 * added); }

std::string ImprovementText(const RankedArm& arm) {
  return arm.improvement ? WithError(*arm.improvement) : "-";
}

Json NumberJson(const std::optional<double>& value) {
  return value && std::isfinite(*value) ? Json(*value) : Json(nullptr);
}

std::optional<double> MeanOf(const std::optional<Estimate>& estimate) {
  return estimate ? std::optional(estimate->mean) : std::nullopt;
}
std::optional<double> ErrorOf(const std::optional<Estimate>& estimate) {
  return estimate ? estimate->error : std::nullopt;
}

Json ArmJson(const Experiment& experiment, const Outline& outline, const RankedArm& ranked,
             const std::vector<ForkResult>& forks) {
  const Arm& arm = experiment.arms[ranked.arm];
  Json json = {{"group", ArmName(arm)}, {"layers", Json::array()}};
  for (const int64_t layer : arm.group.layers) {
    json["layers"].push_back(outline.linears[static_cast<size_t>(layer)].name);
  }
  json["repeats"] = ranked.improvement ? ranked.improvement->count : 0;
  json["improvement"] = NumberJson(MeanOf(ranked.improvement));
  json["standard_error"] = NumberJson(ErrorOf(ranked.improvement));
  json["significant"] = ranked.improvement && ranked.improvement->significant();
  json["share_of_gap"] = NumberJson(MeanOf(ranked.share));
  json["share_standard_error"] = NumberJson(ErrorOf(ranked.share));
  json["gemm_time_of_16_bit"] = arm.gemm_time;
  json["added_gemm_time"] = ranked.added_time;
  json["forks"] = Json::array();
  for (const ForkResult& fork : forks) {
    if (fork.arm != ranked.arm) continue;
    Json one = {{"job", fork.job}, {"repeat", fork.repeat}, {"loss", NumberJson(fork.loss)}};
    if (!fork.problem.empty()) one["problem"] = fork.problem;
    json["forks"].push_back(std::move(one));
  }
  return json;
}

std::string CsvRow(const Experiment& experiment, const RankedArm& ranked) {
  const Arm& arm = experiment.arms[ranked.arm];
  const auto number = [](const std::optional<double>& value) {
    return value ? absl::StrFormat("%.9g", *value) : "";
  };
  return absl::StrCat(ArmName(arm), ",", arm.group.layers.size(), ",",
                      ranked.improvement ? ranked.improvement->count : 0, ",",
                      number(MeanOf(ranked.improvement)), ",", number(ErrorOf(ranked.improvement)),
                      ",", ranked.improvement && ranked.improvement->significant() ? "yes" : "no",
                      ",", number(MeanOf(ranked.share)), ",", number(ErrorOf(ranked.share)), ",",
                      number(ranked.added_time), "\n");
}

std::string Suggestion(const Experiment& experiment, const Ranking& ranking, bool running) {
  if (!ranking.best) {
    return absl::StrCat("No promotion improves the loss by more than its noise",
                        experiment.repeats < 2
                            ? " can explain: one repeat gives no standard error, repeat with "
                              "--seeds 3"
                            : ": more --seeds or --steps would show smaller effects",
                        ".\n");
  }
  const RankedArm& best = ranking.groups[*ranking.best];
  const std::string selector = experiment.arms[best.arm].group.selector;
  std::string text = absl::StrCat("Promoting '", selector, "' improves the loss most, for ",
                                  AddedText(best.added_time), " theoretical GEMM time:\n  ",
                                  ApplyCommand(experiment, selector, running), "\n");
  if (*ranking.cheapest != *ranking.best) {
    const RankedArm& cheapest = ranking.groups[*ranking.cheapest];
    absl::StrAppend(&text, "'", experiment.arms[cheapest.arm].group.selector,
                    "' improves it most for its time, ", AddedText(cheapest.added_time), ".\n");
  }
  return text;
}

}  // namespace

std::string ShellQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string ApplyCommand(const Experiment& experiment, const std::string& selector, bool running) {
  const std::string layer = ShellQuoted(absl::StrCat(selector, ":all=bf16"));
  if (running) {
    return absl::StrCat("nibble recipe set ", experiment.job, " --layer ", layer,
                        " --reason 'sensitivity at step ", experiment.step, "'");
  }
  return absl::StrCat("nibble job fork ", experiment.job, " --at-step ", experiment.step,
                      " --layer ", layer);
}

Rendered RenderPlan(const Experiment& experiment) {
  Rendered out;
  TextTable table({"ARM", "LAYERS", "GEMM TIME OF 16 BIT"});
  out.csv = "group,layers,gemm_time_of_16_bit\n";
  Json arms = Json::array();
  for (const Arm& arm : experiment.arms) {
    const auto layers = arm.group.layers.size();
    table.Add({ArmName(arm), absl::StrCat(layers), PercentText(arm.gemm_time)});
    absl::StrAppend(&out.csv, ArmName(arm), ",", layers, ",",
                    absl::StrFormat("%.9g", arm.gemm_time), "\n");
    arms.push_back(
        {{"group", ArmName(arm)}, {"layers", layers}, {"gemm_time_of_16_bit", arm.gemm_time}});
  }
  const int64_t forks = static_cast<int64_t>(experiment.arms.size()) * experiment.repeats;
  out.table = absl::StrCat(table.Text(), "\n", Counted(forks, "fork"), " of ", experiment.job,
                           " at step ", experiment.step, ", ", Counted(experiment.steps, "step"),
                           " each, ", forks * experiment.steps, " together\n");
  out.json = JsonText({{"job", experiment.job},
                       {"step", experiment.step},
                       {"steps", experiment.steps},
                       {"repeats", experiment.repeats},
                       {"forks", forks},
                       {"arms", std::move(arms)}});
  return out;
}

Rendered RenderRanking(const Experiment& experiment, const Outline& outline, const Ranking& ranking,
                       const std::vector<ForkResult>& forks, bool running) {
  Rendered out;
  TextTable table(
      {"GROUP", "LAYERS", "REPEATS", "IMPROVEMENT", "SIGNIFICANT", "OF THE GAP", "GEMM TIME"});
  out.csv =
      "group,layers,repeats,improvement,standard_error,significant,share_of_gap,"
      "share_standard_error,added_gemm_time\n";
  const auto add = [&](const RankedArm& ranked) {
    const Arm& arm = experiment.arms[ranked.arm];
    const bool group = arm.kind == ArmKind::kGroup;
    table.Add(
        {group ? arm.group.selector : "everything in bf16", absl::StrCat(arm.group.layers.size()),
         absl::StrCat(ranked.improvement ? ranked.improvement->count : 0), ImprovementText(ranked),
         ranked.improvement && ranked.improvement->significant() ? "yes" : "no",
         group ? ShareText(ranked.share) : "", AddedText(ranked.added_time)});
    absl::StrAppend(&out.csv, CsvRow(experiment, ranked));
  };
  Json groups = Json::array();
  for (const RankedArm& ranked : ranking.groups) {
    add(ranked);
    groups.push_back(ArmJson(experiment, outline, ranked, forks));
  }
  add(ranking.bound);
  out.table =
      absl::StrCat("Forks of ", experiment.job, " at step ", experiment.step, ", ",
                   Counted(experiment.steps, "step"), " each; mean losses of steps ",
                   experiment.first_compared(), " to ", experiment.end_step() - 1, "; control ",
                   WithError(ranking.control), " nats per token\n\n", table.Text(), "\n");
  if (!ranking.bound.improvement || !ranking.bound.improvement->significant()) {
    absl::StrAppend(&out.table,
                    "The gap to bf16 does not exceed its noise, so there are no shares of it.\n");
  }
  for (const std::string& fork : ranking.not_counted) {
    absl::StrAppend(&out.table, "Not counted: ", fork, "\n");
  }
  absl::StrAppend(&out.table, Suggestion(experiment, ranking, running));

  Json json = {
      {"job", experiment.job},
      {"step", experiment.step},
      {"steps", experiment.steps},
      {"repeats", experiment.repeats},
      {"first_compared_step", experiment.first_compared()},
      {"control",
       {{"loss", ranking.control.mean}, {"standard_error", NumberJson(ranking.control.error)}}},
      {"bf16", ArmJson(experiment, outline, ranking.bound, forks)},
      {"groups", std::move(groups)},
      {"not_counted", ranking.not_counted},
      {"suggestion", nullptr},
      {"command", nullptr}};
  if (ranking.best) {
    const std::string& selector = experiment.arms[ranking.groups[*ranking.best].arm].group.selector;
    json["suggestion"] = selector;
    json["command"] = ApplyCommand(experiment, selector, running);
  }
  out.json = JsonText(json);
  return out;
}

Rendered RenderPrecision(const std::string& job, const PrecisionTable& table) {
  Rendered out;
  TextTable text({"LAYER", "ERROR", "FPROP", "DGRAD", "WGRAD", "UNDERFLOW", "CLIPPED", "KEEP"});
  out.csv = "layer,error,fprop,dgrad,wgrad,underflow,clipped,keep\n";
  Json layers = Json::array();
  for (const LayerError& layer : table.layers) {
    std::vector<std::string> cells = {layer.layer, PercentText(layer.total)};
    Json json = {{"layer", layer.layer}, {"error", NumberJson(layer.total)}};
    absl::StrAppend(&out.csv, layer.layer, ",", absl::StrFormat("%.9g", layer.total));
    for (const LinearGemm gemm : kAllLinearGemms) {
      const double error = layer.gemm[static_cast<size_t>(gemm)];
      cells.push_back(error == 0 ? "-" : PercentText(error));
      json[std::string(LinearGemmName(gemm))] = NumberJson(error);
      absl::StrAppend(&out.csv, ",", absl::StrFormat("%.9g", error));
    }
    cells.insert(cells.end(), {PercentText(layer.underflow), PercentText(layer.clipped),
                               layer.keep ? "yes" : "no"});
    json["underflow"] = NumberJson(layer.underflow);
    json["clipped"] = NumberJson(layer.clipped);
    json["keep"] = layer.keep;
    absl::StrAppend(&out.csv, absl::StrFormat(",%.9g,%.9g,%s\n", layer.underflow, layer.clipped,
                                              layer.keep ? "yes" : "no"));
    text.Add(std::move(cells));
    layers.push_back(std::move(json));
  }
  const std::vector<std::string> kept = table.Kept();
  std::string command;
  if (!kept.empty()) {
    command = absl::StrCat("nibble recipe set ", job);
    for (const std::string& layer : kept) {
      absl::StrAppend(&command, " --layer ", ShellQuoted(absl::StrCat(layer, ":all=bf16")));
    }
  }
  out.table = absl::StrCat(
      "Relative quantisation error in step ", table.step, " of ", job, "; median ",
      PercentText(table.median), ", layers above ", PercentText(table.bound), " stand out\n\n",
      text.Text(), "\n",
      kept.empty() ? "No layer stands out.\n"
                   : absl::StrCat("To keep the layers that stand out in bf16:\n  ", command, "\n"));
  out.json = JsonText({{"job", job},
                       {"step", table.step},
                       {"median", NumberJson(table.median)},
                       {"bound", NumberJson(table.bound)},
                       {"layers", std::move(layers)},
                       {"keep", kept},
                       {"command", command.empty() ? Json(nullptr) : Json(command)}});
  return out;
}

}  // namespace nibble
