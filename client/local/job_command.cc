#include "client/local/job_command.h"

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/local/finish.h"
#include "client/local/job_report.h"
#include "client/local/noun.h"
#include "client/local/output_format.h"
#include "client/local/read_spec.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

struct Flags {
  std::string file;
  std::string print = "table";
};

absl::StatusOr<std::string> ValidateFile(const Flags& flags) {
  const absl::StatusOr<JobSpec> spec = ReadJobSpec(flags.file);
  if (!spec.ok()) return spec.status();
  const absl::StatusOr<JobReport> report = MakeJobReport(*spec);
  if (!report.ok()) return report.status();
  if (!ForPrograms(flags.print)) return JobReportText(*report);
  return InFormat(flags.print, JobReportJson(*report));
}

}  // namespace

void AddJobCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* job = NounOf(app, "job", "Jobs: what their specs say, and those of a cluster");

  CLI::App* defaults = job->add_subcommand(
      "show-defaults", "Print a spec with every field, its default and what it means");
  defaults->callback([&exit_code] { exit_code = Finish("job show-defaults", DefaultsYaml()); });

  CLI::App* validate = job->add_subcommand(
      "validate", "Check a spec: every problem with its line, or what the job amounts to");
  validate->add_option("FILE", flags->file, "a spec in YAML; - reads stdin")->required();
  AddOutputOption(validate, flags->print);
  validate->callback(
      [flags, &exit_code] { exit_code = Finish("job validate", ValidateFile(*flags)); });
}

}  // namespace nibble
