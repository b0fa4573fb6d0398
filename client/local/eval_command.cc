#include "client/local/eval_command.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "client/local/eval_run.h"
#include "client/local/exit_code.h"

namespace nibble {
namespace {

struct Flags {
  EvalRequest request;
  bool run_together = false;
  std::string print = "table";
};

void Complain(std::string_view line) {
  absl::FPrintF(stderr, "nibble eval: %s\n", std::string(line));
}

void AddDataOptions(CLI::App* command, EvalRequest& request, Flags& flags) {
  const char* const kGroup = "Token data";
  command
      ->add_option("--sequence", request.sequence,
                   "tokens of a window; 2048 by default, or what learned positions allow")
      ->check(CLI::PositiveNumber)
      ->group(kGroup);
  command
      ->add_option("--max-windows", request.max_windows, "of each file the first so many; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(kGroup);
  command
      ->add_flag("--run-documents-together", flags.run_together,
                 "let a document see the one before it, as a model trained so has to")
      ->group(kGroup);
  command
      ->add_option("--token-width", request.token_width,
                   "bytes per token of a file of nothing but tokens: 2 or 4")
      ->check(CLI::IsMember({2, 4}))
      ->group(kGroup);
  command
      ->add_option("--document-end", request.document_end,
                   "token that ends every document of a file that has no index of them")
      ->check(CLI::Range(int64_t{0}, (int64_t{1} << 31) - 1))
      ->group(kGroup);
}

void AddChoiceOptions(CLI::App* command, EvalRequest& request) {
  const char* const kGroup = "Multiple choice";
  command
      ->add_option("--delimiter", request.choice_options.delimiter,
                   "what stands between context and choice; a space by default")
      ->group(kGroup);
  command
      ->add_option("--max-questions", request.choice_options.max_questions,
                   "the first so many only; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(kGroup);
  command->add_flag("--answers", request.answers, "in JSON also every question's log-likelihoods")
      ->group(kGroup);
}

}  // namespace

void AddEvalCommand(CLI::App& app, int& exit_code, WeightOpener open) {
  auto flags = std::make_shared<Flags>();
  EvalRequest& request = flags->request;
  CLI::App* command = app.add_subcommand(
      "eval", "A trained model's loss on token data, or its accuracy on multiple-choice questions");
  command->add_option("--from", request.from, "a checkpoint, or an exported model's directory")
      ->required();
  CLI::Option_group* what = command->add_option_group("What to evaluate");
  what->add_option("--data", request.data, "token files, separated by commas")->delimiter(',');
  what->add_option("--choices", request.choices,
                   "a file of questions, one JSON object with context, choices and gold a line");
  what->require_option(1);
  AddDataOptions(command, request, *flags);
  AddChoiceOptions(command, request);
  command->add_option("--precision", request.precision, "of weights and activations")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--threads", request.threads, "0: every processor")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command->add_option("--tokenizer", request.tokenizer,
                      "of a model that does not know its own: bytes, or a SentencePiece .model");
  command->add_option("-o,--output", flags->print, "what to print: table or json")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();
  command->callback([flags, open = std::move(open), &exit_code] {
    flags->request.reset_at_documents = !flags->run_together;
    flags->request.json = flags->print == "json";
    const absl::StatusOr<std::string> text = RunEval(flags->request, open, Complain);
    if (text.ok()) {
      std::fputs(text->c_str(), stdout);
    } else {
      Complain(std::string(text.status().message()));
    }
    exit_code = ExitCodeOf(text.status());
  });
}

}  // namespace nibble
