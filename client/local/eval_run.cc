#include "client/local/eval_run.h"

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/local/json_text.h"
#include "worker/infer/decoder.h"
#include "worker/infer/eval/token_loss.h"
#include "worker/infer/model_choice.h"
#include "worker/trainer/data/open_tokens.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kDefaultSequence = 2048;

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

// Files of other trainers are taken to be in the model's own tokens: they do not say.
absl::StatusOr<std::shared_ptr<const TokenSource>> OpenData(const std::string& path,
                                                            const EvalRequest& request,
                                                            const WeightSource& weights,
                                                            const Tokenizer* tokenizer) {
  const absl::StatusOr<TokenFileKind> kind = RecogniseTokens(path);
  if (!kind.ok()) return kind.status();
  TokenHints hints;
  if (*kind != TokenFileKind::kShard) {
    hints.tokenizer = tokenizer == nullptr ? "unknown" : tokenizer->label();
    hints.vocabulary = weights.outline().spec.vocab;
    hints.token_width = request.token_width;
    if (request.document_end >= 0 && *kind != TokenFileKind::kMegatronIndex) {
      hints.document_mark = DocumentMark{.token = static_cast<int32_t>(request.document_end)};
    }
  }
  absl::StatusOr<std::unique_ptr<TokenSource>> opened = OpenTokens(path, hints);
  if (!opened.ok()) return opened.status();
  if (tokenizer != nullptr && (*opened)->tokenizer() != tokenizer->label()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": tokenizer is \"", (*opened)->tokenizer(), "\", not the model's, \"",
                     tokenizer->label(), "\""));
  }
  return std::shared_ptr<const TokenSource>(*std::move(opened));
}

// A line for each tenth of the windows.
WindowProgress TenthsOf(const std::string& path, const EvalSay& say) {
  return [path, &say, last = int64_t{0}](int64_t done, int64_t windows) mutable {
    const int64_t tenth = 10 * done / windows;
    if (tenth <= last) return;
    last = tenth;
    say(absl::StrFormat("%s: %d %% of %d windows", path, 10 * tenth, windows));
  };
}

std::string LossTable(const std::vector<TokenLoss>& losses) {
  std::string table = absl::StrFormat("%10s  %12s  %10s  %12s  %s\n", "windows", "tokens", "loss",
                                      "perplexity", "data");
  for (const TokenLoss& loss : losses) {
    absl::StrAppendFormat(&table, "%10d  %12d  %10.5f  %12.4f  %s\n", loss.windows, loss.tokens,
                          loss.loss, loss.perplexity, loss.name);
  }
  return table;
}

Json Head(const EvalRequest& request, const WeightSource& source) {
  return {{"from", request.from},
          {"source", source.description()},
          {"model", source.outline().spec.name},
          {"precision", request.precision}};
}

absl::StatusOr<std::string> EvalData(const EvalRequest& request, const WeightSource& source,
                                     const Tokenizer* tokenizer, Decoder& decoder,
                                     const EvalSay& say) {
  const int64_t sequence = request.sequence > 0
                               ? request.sequence
                               : std::min(kDefaultSequence, LongestSequence(source.outline()));
  // All are opened before any is run.
  std::vector<std::shared_ptr<const TokenSource>> sources;
  for (const std::string& path : request.data) {
    absl::StatusOr<std::shared_ptr<const TokenSource>> data =
        OpenData(path, request, source, tokenizer);
    if (!data.ok()) return data.status();
    sources.push_back(*std::move(data));
  }
  std::vector<TokenLoss> losses;
  for (const std::shared_ptr<const TokenSource>& data : sources) {
    absl::StatusOr<TokenLoss> loss =
        EvaluateTokens(decoder, data,
                       {.sequence = sequence,
                        .max_windows = request.max_windows,
                        .window = {.reset_at_documents = request.reset_at_documents}},
                       TenthsOf(data->name(), say));
    if (!loss.ok()) return loss.status();
    losses.push_back(*std::move(loss));
  }
  if (!request.json) return LossTable(losses);
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
  return JsonText(json);
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

absl::StatusOr<std::string> EvalChoices(const EvalRequest& request, const WeightSource& source,
                                        const Tokenizer& tokenizer, Decoder& decoder) {
  const absl::StatusOr<std::vector<Answer>> answers =
      AnswerFile(decoder, tokenizer, request.choices, request.choice_options);
  if (!answers.ok()) return answers.status();
  const ChoiceScore score = Summarize(*answers);
  if (!request.json) return ChoiceTable(score);
  Json json = Head(request, source);
  json["choices"] = request.choices;
  json["questions"] = score.questions;
  json["acc"] = score.accuracy;
  json["acc_stderr"] = OrNull(score.standard_error);
  json["acc_norm"] = score.accuracy_norm;
  json["acc_norm_stderr"] = OrNull(score.standard_error_norm);
  if (request.answers) {
    json["answers"] = Json::array();
    for (const Answer& answer : *answers) {
      json["answers"].push_back({{"line", answer.line},
                                 {"id", answer.id.empty() ? Json() : Json(answer.id)},
                                 {"gold", answer.gold},
                                 {"log_likelihoods", answer.log_likelihoods},
                                 {"chosen", answer.chosen},
                                 {"chosen_norm", answer.chosen_norm}});
    }
  }
  return JsonText(json);
}

}  // namespace

absl::StatusOr<std::string> RunEval(const EvalRequest& request, const WeightOpener& open,
                                    const EvalSay& say) {
  if (request.data.empty() == request.choices.empty()) {
    return absl::InvalidArgumentError("either data or choices are evaluated, and not both");
  }
  const absl::StatusOr<DType> precision = ParsePrecision(request.precision);
  if (!precision.ok()) return precision.status();
  const absl::StatusOr<std::unique_ptr<WeightSource>> source = open(request.from);
  if (!source.ok()) return source.status();
  // Token data can do without a tokenizer; text cannot.
  std::shared_ptr<const Tokenizer> tokenizer;
  if (!request.choices.empty() || !request.tokenizer.empty() || (*source)->tokenizer() != nullptr) {
    absl::StatusOr<std::shared_ptr<const Tokenizer>> chosen =
        ChooseTokenizer(**source, request.tokenizer);
    if (!chosen.ok()) return chosen.status();
    tokenizer = *std::move(chosen);
  }
  absl::StatusOr<std::unique_ptr<Decoder>> decoder =
      Decoder::Create(**source, {.precision = *precision,
                                 .threads = request.threads,
                                 .max_sequence = LongestSequence((*source)->outline())});
  if (!decoder.ok()) return decoder.status();
  if (!request.choices.empty()) return EvalChoices(request, **source, *tokenizer, **decoder);
  return EvalData(request, **source, tokenizer.get(), **decoder, say);
}

}  // namespace nibble
