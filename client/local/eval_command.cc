#include "client/local/local_commands.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/shell/command_line.h"
#include "client/shell/output.h"
#include "client/shell/spec_input.h"
#include "common/command_line/command_line.h"
#include "common/status_macros.h"
#include "common/text/table.h"
#include "worker/infer/decoder.h"
#include "worker/infer/eval/multiple_choice.h"
#include "worker/infer/eval/token_loss.h"
#include "worker/infer/model_choice.h"
#include "worker/trainer/data/token_source.h"
#include "worker/weights/weight_source.h"

namespace nibble {
namespace {

struct EvalRequest {
  InferenceFlags model;
  std::vector<std::string> data;  // token files; or
  std::string choices;            // a file of questions

  // For token data.
  int64_t sequence = 0;  // 0: WindowOf()
  int64_t max_windows = 0;
  bool reset_at_documents = true;
  int token_width = 0;        // of files without a header
  int64_t document_end = -1;  // of files without an index of documents

  ChoiceOptions choice_options;
  bool answers = false;  // JSON includes every question's log-likelihoods
};

using Json = nlohmann::ordered_json;

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

// Files of other trainers do not name their tokenizer: assumes the model's.
absl::StatusOr<std::shared_ptr<const TokenSource>> OpenData(const std::string& path,
                                                            const EvalRequest& request,
                                                            const WeightSource& weights,
                                                            const Tokenizer* tokenizer) {
  NIBBLE_ASSIGN_OR_RETURN(const TokenFileKind kind, RecogniseTokens(path));
  TokenHints hints;
  if (kind != TokenFileKind::kShard) {
    hints.tokenizer = tokenizer == nullptr ? "unknown" : tokenizer->label();
    hints.vocabulary = weights.outline().spec.vocab;
    hints.token_width = request.token_width;
    if (request.document_end >= 0 && kind != TokenFileKind::kMegatronIndex) {
      hints.document_mark = DocumentMark{.token = static_cast<int32_t>(request.document_end)};
    }
  }
  NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<TokenSource> opened, OpenTokens(path, hints));
  if (tokenizer != nullptr && opened->tokenizer() != tokenizer->label()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": tokenizer is \"", opened->tokenizer(),
                                                   "\", not the model's, \"", tokenizer->label(),
                                                   "\""));
  }
  return std::shared_ptr<const TokenSource>(std::move(opened));
}

// Reports progress after each tenth of the windows.
WindowProgress TenthsOf(const std::string& path) {
  return [path, last = int64_t{0}](int64_t done, int64_t windows) mutable {
    const int64_t tenth = 10 * done / windows;
    if (tenth <= last) return;
    last = tenth;
    Tell("eval", absl::StrFormat("%s: %d %% of %d windows", path, 10 * tenth, windows));
  };
}

std::string LossTable(const std::vector<TokenLoss>& losses) {
  TextTable table({"windows", "tokens", "loss", "perplexity", "data"});
  for (const TokenLoss& loss : losses) {
    table.Add({absl::StrCat(loss.windows), absl::StrCat(loss.tokens),
               absl::StrFormat("%.5f", loss.loss), absl::StrFormat("%.4f", loss.perplexity),
               loss.name});
  }
  return table.Text();
}

Json Head(const EvalRequest& request, const WeightSource& source) {
  return {{"from", request.model.from},
          {"source", source.description()},
          {"model", source.outline().spec.name},
          {"precision", request.model.precision},
          {"device", request.model.device}};
}

// The tokens of a window: as requested, else as the model was trained.
int64_t WindowOf(const EvalRequest& request, const WeightSource& source) {
  if (request.sequence > 0) return request.sequence;
  return source.trained_sequence().value_or(DefaultSequence(source.outline().spec));
}

void NoteBeyondTraining(const WeightSource& source, int64_t tokens, Reply& reply) {
  std::optional<std::string> note = BeyondTraining(source, tokens);
  if (note.has_value()) reply.notes.push_back(*std::move(note));
}

absl::StatusOr<Reply> EvalData(const EvalRequest& request, const WeightSource& source,
                               const Tokenizer* tokenizer, Decoder& decoder) {
  const int64_t sequence = WindowOf(request, source);
  // Opens all files before evaluating any, so that a missing one fails at once.
  std::vector<std::shared_ptr<const TokenSource>> sources;
  for (const std::string& path : request.data) {
    NIBBLE_ASSIGN_OR_RETURN(std::shared_ptr<const TokenSource> data,
                            OpenData(path, request, source, tokenizer));
    sources.push_back(std::move(data));
  }
  std::vector<TokenLoss> losses;
  for (const std::shared_ptr<const TokenSource>& data : sources) {
    NIBBLE_ASSIGN_OR_RETURN(
        TokenLoss loss,
        EvaluateTokens(decoder, data,
                       {.sequence = sequence,
                        .max_windows = request.max_windows,
                        .window = {.reset_at_documents = request.reset_at_documents}},
                       TenthsOf(data->name())));
    losses.push_back(std::move(loss));
  }
  Json json = Head(request, source);
  json["sequence"] = sequence;
  json["reset_at_documents"] = request.reset_at_documents;
  json["data"] = Json::array();
  for (const TokenLoss& loss : losses) {
    json["data"].push_back({{"path", loss.name},
                            {"windows", loss.windows},
                            {"tokens", loss.tokens},
                            {"loss", loss.loss},
                            {"perplexity", loss.perplexity}});
  }
  Reply reply{.text = LossTable(losses), .json = JsonText(json)};
  NoteBeyondTraining(source, sequence, reply);
  return reply;
}

std::string ChoiceTable(const ChoiceScore& score) {
  const auto row = [](const char* name, double value, const std::optional<double>& error) {
    return absl::StrFormat("%-9s  %.4f  +- %s\n", name, value,
                           error ? absl::StrFormat("%.4f", *error) : "unknown");
  };
  return absl::StrFormat("questions  %d\n", score.questions) +
         row("acc", score.accuracy, score.standard_error) +
         row("acc_norm", score.accuracy_norm, score.standard_error_norm);
}

absl::StatusOr<Reply> EvalChoices(const EvalRequest& request, const WeightSource& source,
                                  const Tokenizer& tokenizer, Decoder& decoder) {
  NIBBLE_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                          AnswerFile(decoder, tokenizer, request.choices, request.choice_options));
  const ChoiceScore score = Summarize(answers);
  Json json = Head(request, source);
  json["choices"] = request.choices;
  json["questions"] = score.questions;
  json["acc"] = score.accuracy;
  json["acc_stderr"] = OrNull(score.standard_error);
  json["acc_norm"] = score.accuracy_norm;
  json["acc_norm_stderr"] = OrNull(score.standard_error_norm);
  if (request.answers) {
    json["answers"] = Json::array();
    for (const Answer& answer : answers) {
      json["answers"].push_back({{"line", answer.line},
                                 {"id", answer.id.empty() ? Json() : Json(answer.id)},
                                 {"gold", answer.gold},
                                 {"log_likelihoods", answer.log_likelihoods},
                                 {"chosen", answer.chosen},
                                 {"chosen_norm", answer.chosen_norm}});
    }
  }
  Reply reply{.text = ChoiceTable(score), .json = JsonText(json)};
  int64_t longest = 0;
  for (const Answer& answer : answers) longest = std::max(longest, answer.tokens);
  NoteBeyondTraining(source, longest, reply);
  return reply;
}

// Reports progress on stderr. Errors: those of `open`, ChooseTokenizer, EvaluateTokens and
// AnswerFile; InvalidArgument if the data was made with another tokenizer than the model's.
absl::StatusOr<Reply> RunEval(const EvalRequest& request, const WeightOpener& open) {
  if (request.data.empty() == request.choices.empty()) {
    return absl::InvalidArgumentError("give either --data or --choices");
  }
  const absl::StatusOr<DType> precision = ParsePrecision(request.model.precision);
  if (!precision.ok()) return precision.status();
  NIBBLE_ASSIGN_OR_RETURN(const DecodeOn on, ParseDecodeOn(request.model.device));
  NIBBLE_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source, open(request.model.from));
  // Questions need a tokenizer; token data does not.
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!request.choices.empty() || !request.model.tokenizer.empty() ||
      source->tokenizer() != nullptr) {
    NIBBLE_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> chosen,
                            ChooseTokenizer(*source, request.model.tokenizer));
    tokenizer = std::move(chosen);
  }
  NIBBLE_ASSIGN_OR_RETURN(
      std::unique_ptr<Decoder> decoder,
      Decoder::Create(*source, {.precision = *precision,
                                .on = on,
                                .threads = request.model.threads,
                                .max_sequence = LongestSequence(source->outline())}));
  NIBBLE_ASSIGN_OR_RETURN(Reply reply, request.choices.empty()
                                           ? EvalData(request, *source, tokenizer.get(), *decoder)
                                           : EvalChoices(request, *source, *tokenizer, *decoder));
  const std::vector<std::string> notices = source->notices();
  reply.notes.insert(reply.notes.begin(), notices.begin(), notices.end());
  return reply;
}

struct EvalFlags {
  EvalRequest request;
  bool run_together = false;
  std::string print = "table";
};

void AddDataOptions(Command command, EvalRequest& request, EvalFlags& flags) {
  const char* const kGroup = "Token data";
  command
      .Add("--sequence", request.sequence,
           "tokens of a window; default: as the model was trained; unless that is known 2048, or "
           "the maximum of learned positions")
      .AtLeast(1)
      .Group(kGroup);
  command.Add("--max-windows", request.max_windows, "only the first N windows of each file; 0: all")
      .AtLeast(0)
      .ShowDefault()
      .Group(kGroup);
  command
      .AddFlag("--run-documents-together", flags.run_together,
               "let attention cross document boundaries, for models that were trained that way")
      .Group(kGroup);
  command
      .Add("--token-width", request.token_width,
           "bytes per token of a file without a header: 2 or 4")
      .OneOfNumbers({2, 4})
      .Group(kGroup);
  command
      .Add("--document-end", request.document_end,
           "token that ends every document, for files without a document index")
      .WholeNumber(int64_t{0}, (int64_t{1} << 31) - 1)
      .Group(kGroup);
}

void AddChoiceOptions(Command command, EvalRequest& request) {
  const char* const kGroup = "Multiple choice";
  command
      .Add("--delimiter", request.choice_options.delimiter,
           "text between context and choice; default: a space")
      .Group(kGroup);
  command
      .Add("--max-questions", request.choice_options.max_questions,
           "only the first N questions; 0: all")
      .AtLeast(0)
      .ShowDefault()
      .Group(kGroup);
  command
      .AddFlag("--answers", request.answers,
               "with -o json or yaml: include the log-likelihoods of every question")
      .Group(kGroup);
}

}  // namespace

void AddEvalCommand(Command app, int& exit_code, WeightOpener open) {
  auto flags = std::make_shared<EvalFlags>();
  EvalRequest& request = flags->request;
  Command command = app.AddSubcommand(
      "eval",
      "Measure the loss of a model on token data, or its accuracy on multiple-choice questions");
  AddModelOptions(command, request.model);
  const Command what = command.AddChoice("What to evaluate");
  what.Add("--data", request.data, "token files, separated by commas").SplitAt(',');
  what.Add("--choices", request.choices,
           "a file of questions: one JSON object per line, with context, choices and gold");
  AddDataOptions(command, request, *flags);
  AddChoiceOptions(command, request);
  AddOutputOption(command, flags->print);
  command.Footer("Example: nibble eval --from runs/quickstart --data tokens/validation.tokens");
  command.OnParsed([flags, open = std::move(open), &exit_code] {
    flags->request.reset_at_documents = !flags->run_together;
    exit_code = Finish("eval", flags->print, RunEval(flags->request, open));
  });
}

}  // namespace nibble
