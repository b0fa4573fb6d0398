#include "client/local/job_command.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/local/exit_code.h"
#include "client/local/job_report.h"
#include "job/job_spec.h"

namespace nibble {
namespace {

struct Flags {
  std::string file;
  std::string print = "table";
};

// No more than tells that it is too much. "-" is stdin.
absl::StatusOr<std::string> ReadSpec(const std::string& path) {
  const auto close = [](std::FILE* file) { return file == stdin ? 0 : std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  std::string text(kMaxJobBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  return text;
}

absl::StatusOr<std::string> ValidateFile(const Flags& flags) {
  const absl::StatusOr<std::string> text = ReadSpec(flags.file);
  if (!text.ok()) return text.status();
  const absl::StatusOr<JobSpec> spec = ParseJobSpec(*text);
  if (!spec.ok()) {
    return absl::Status(spec.status().code(),
                        absl::StrCat(flags.file, ": ", std::string(spec.status().message())));
  }
  const absl::StatusOr<JobReport> report = MakeJobReport(*spec);
  if (!report.ok()) return report.status();
  return flags.print == "json" ? JobReportJson(*report) : JobReportText(*report);
}

int Finish(const char* verb, const absl::StatusOr<std::string>& text) {
  if (text.ok()) {
    std::fputs(text->c_str(), stdout);
  } else {
    absl::FPrintF(stderr, "nibble job %s: %s\n", verb, std::string(text.status().message()));
  }
  return ExitCodeOf(text.status());
}

}  // namespace

void AddJobCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<Flags>();
  CLI::App* job = app.add_subcommand("job", "What a job's spec can say, and whether one is right");
  job->require_subcommand(1);

  CLI::App* defaults = job->add_subcommand(
      "show-defaults", "Print a spec with every field, its default and what it means");
  defaults->callback([&exit_code] { exit_code = Finish("show-defaults", DefaultsYaml()); });

  CLI::App* validate = job->add_subcommand(
      "validate", "Check a spec: every problem with its line, or what the job amounts to");
  validate->add_option("FILE", flags->file, "a spec in YAML; - reads stdin")->required();
  validate->add_option("-o,--output", flags->print, "what to print: table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  validate->callback([flags, &exit_code] { exit_code = Finish("validate", ValidateFile(*flags)); });
}

}  // namespace nibble
