#include "client/local/generate_command.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/local/exit_code.h"
#include "client/local/finish.h"
#include "client/local/generate_run.h"
#include "client/local/model_options.h"
#include "client/local/number_check.h"
#include "client/local/output_format.h"

namespace nibble {
namespace {

struct Flags {
  GenerateRequest request;
  std::string prompt_file;
  std::string print = "text";
};

absl::Status WriteOut(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "cannot write to stdout");
}

absl::Status Run(Flags& flags, bool has_prompt, const WeightOpener& open) {
  if (!has_prompt) {
    absl::StatusOr<std::string> prompt =
        ReadPrompt(flags.prompt_file.empty() ? "-" : flags.prompt_file);
    if (!prompt.ok()) return prompt.status();
    flags.request.prompt = *std::move(prompt);
  }
  flags.request.json = ForPrograms(flags.print);
  // JSON comes in one piece, which as a whole may become YAML; text comes as it is made.
  const auto write = [&flags](std::string_view text) -> absl::Status {
    if (!flags.request.json) return WriteOut(text);
    const absl::StatusOr<std::string> whole = InFormat(flags.print, std::string(text));
    return whole.ok() ? WriteOut(*whole) : whole.status();
  };
  const auto say = [](std::string_view line) { Tell("generate", line); };
  return RunGenerate(flags.request, open, {.write = write, .say = say});
}

}  // namespace

void AddGenerateCommand(CLI::App& app, int& exit_code, WeightOpener open) {
  auto flags = std::make_shared<Flags>();
  GenerateRequest& request = flags->request;
  CLI::App* command = app.add_subcommand("generate", "Text from a trained model");
  AddModelOptions(command, request);
  CLI::Option* prompt = command->add_option("--prompt", request.prompt, "text to go on from");
  command
      ->add_option("--prompt-file", flags->prompt_file,
                   "a file with it; without either it is read from stdin")
      ->excludes(prompt);
  command->add_option("--max-tokens", request.max_tokens, "of each sample")
      ->check(WholeFor(request.max_tokens, 1))
      ->capture_default_str();
  command
      ->add_option("--temperature", request.sampler.temperature,
                   "0 takes the likeliest token every time")
      ->capture_default_str();
  command
      ->add_option("--top-k", request.sampler.top_k,
                   "draw among the likeliest so many tokens; 0: all")
      ->capture_default_str();
  command
      ->add_option("--top-p", request.sampler.top_p,
                   "draw among the likeliest tokens that have this share of the probability")
      ->capture_default_str();
  command->add_option("--seed", request.sampler.seed, "the same seed draws the same text")
      ->capture_default_str();
  command->add_option("--samples", request.samples, "continuations of the prompt")
      ->check(WholeFor(request.samples, 1))
      ->capture_default_str();
  AddOutputOption(command, flags->print);
  command->footer(
      "Example: nibble generate --from runs/quickstart --prompt 'You may' --temperature 0.8");
  command->callback([flags, prompt, open = std::move(open), &exit_code] {
    const absl::Status status = Run(*flags, prompt->count() > 0, open);
    if (!status.ok()) Tell("generate", std::string(status.message()));
    exit_code = ExitCodeOf(status);
  });
}

}  // namespace nibble
