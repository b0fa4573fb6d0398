#include "client/local/model_command.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "client/local/finish.h"
#include "client/local/model_report.h"
#include "client/local/number_check.h"
#include "client/local/output_format.h"
#include "model/model_spec.h"

namespace nibble {
namespace {

struct Flags {
  std::string model;
  int64_t sequence = 0;  // 0: the model's default
  int64_t ranks = 1;
  std::string print = "table";
};

// The text that goes to stdout.
absl::StatusOr<std::string> Presets(const Flags& flags) {
  std::vector<ModelReport> reports;
  for (const std::string& name : ModelPresetNames()) {
    const absl::StatusOr<ModelSpec> spec = ModelPreset(name);
    if (!spec.ok()) return spec.status();
    absl::StatusOr<ModelReport> report = MakeModelReport(*spec, DefaultSequence(*spec), 1);
    if (!report.ok()) return report.status();
    reports.push_back(*std::move(report));
  }
  if (!ForPrograms(flags.print)) return ModelListText(reports);
  return InFormat(flags.print, ModelListJson(reports));
}

absl::StatusOr<std::string> Show(const Flags& flags) {
  const absl::StatusOr<ModelSpec> spec = ModelPreset(flags.model);
  if (!spec.ok()) return spec.status();
  const absl::StatusOr<ModelReport> report = MakeModelReport(
      *spec, flags.sequence == 0 ? DefaultSequence(*spec) : flags.sequence, flags.ranks);
  if (!report.ok()) return report.status();
  if (!ForPrograms(flags.print)) return ModelReportText(*report);
  return InFormat(flags.print, ModelReportJson(*report));
}

}  // namespace

void AddModelCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* model = app.add_subcommand("model", "What models there are, and what one takes");
  model->require_subcommand(1);

  CLI::App* presets = model->add_subcommand("presets", "List the models that have a name");
  AddOutputOption(presets, flags->print);
  presets->callback([flags, &exit_code] { exit_code = Finish("model presets", Presets(*flags)); });

  CLI::App* show = model->add_subcommand(
      "show", "Pattern, sizes, parameters, operations per token and memory per rank");
  show->add_option("MODEL", flags->model, "a preset; see `nibble model presets`")->required();
  show->add_option("--sequence", flags->sequence,
                   "tokens of a sequence; 2048 by default, or what learned positions allow")
      ->check(WholeFor(flags->sequence, 1));
  show->add_option("--ranks", flags->ranks, "processes that share the optimizer's state")
      ->check(WholeFor(flags->ranks, 1))
      ->capture_default_str();
  AddOutputOption(show, flags->print);
  show->callback([flags, &exit_code] { exit_code = Finish("model show", Show(*flags)); });
}

}  // namespace nibble
