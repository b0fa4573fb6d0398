#include "client/local/eval_command.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "client/local/eval_run.h"
#include "client/local/finish.h"
#include "client/local/model_options.h"
#include "client/local/number_check.h"
#include "client/local/output_format.h"

namespace nibble {
namespace {

struct Flags {
  EvalRequest request;
  bool run_together = false;
  std::string print = "table";
};

void AddDataOptions(CLI::App* command, EvalRequest& request, Flags& flags) {
  const char* const kGroup = "Token data";
  command
      ->add_option("--sequence", request.sequence,
                   "tokens of a window; 2048 by default, or what learned positions allow")
      ->check(WholeFor(request.sequence, 1))
      ->group(kGroup);
  command
      ->add_option("--max-windows", request.max_windows, "of each file the first so many; 0: all")
      ->check(WholeFor(request.max_windows, 0))
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
      ->check(WholeNumber(int64_t{0}, (int64_t{1} << 31) - 1))
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
      ->check(WholeFor(request.choice_options.max_questions, 0))
      ->capture_default_str()
      ->group(kGroup);
  command
      ->add_flag("--answers", request.answers,
                 "with -o json or yaml: every question's log-likelihoods too")
      ->group(kGroup);
}

}  // namespace

void AddEvalCommand(CLI::App& app, int& exit_code, WeightOpener open) {
  auto flags = std::make_shared<Flags>();
  EvalRequest& request = flags->request;
  CLI::App* command = app.add_subcommand(
      "eval", "A trained model's loss on token data, or its accuracy on multiple-choice questions");
  AddModelOptions(command, request);
  CLI::Option_group* what = command->add_option_group("What to evaluate");
  what->add_option("--data", request.data, "token files, separated by commas")->delimiter(',');
  what->add_option("--choices", request.choices,
                   "a file of questions, one JSON object with context, choices and gold a line");
  what->require_option(1);
  AddDataOptions(command, request, *flags);
  AddChoiceOptions(command, request);
  AddOutputOption(command, flags->print);
  command->footer("Example: nibble eval --from runs/quickstart --data tokens/validation.tokens");
  command->callback([flags, open = std::move(open), &exit_code] {
    flags->request.reset_at_documents = !flags->run_together;
    flags->request.json = ForPrograms(flags->print);
    const auto say = [](std::string_view line) { Tell("eval", line); };
    exit_code = Finish("eval", InFormat(flags->print, RunEval(flags->request, open, say)));
  });
}

}  // namespace nibble
