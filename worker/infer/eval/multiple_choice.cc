#include "worker/infer/eval/multiple_choice.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/errno_error.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

template <class... Piece>
absl::Status Bad(const Piece&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat(pieces...));
}

// The value of `name` or of its alias `other`.
absl::StatusOr<const Json*> Field(const Json& object, const char* name, const char* other,
                                  const char** used) {
  const auto a = object.find(name), b = object.find(other);
  if (a != object.end() && b != object.end()) {
    return Bad(other, ": an alias of ", name, ", which the question also has; remove one");
  }
  *used = b != object.end() ? other : name;
  if (a == object.end() && b == object.end()) return Bad(name, ": missing (or ", other, ")");
  return &*(a != object.end() ? a : b);
}

absl::Status ReadChoices(const Json& object, ChoiceQuestion& question) {
  const auto choices = object.find("choices");
  if (choices == object.end()) return Bad("choices: missing");
  if (!choices->is_array()) return Bad("choices: is ", choices->type_name(), ", not an array");
  if (choices->empty() || choices->size() > static_cast<size_t>(kMaxChoices)) {
    return Bad("choices: ", choices->size(), " of them, not 1 to ", kMaxChoices);
  }
  for (size_t i = 0; i < choices->size(); ++i) {
    const Json& choice = (*choices)[i];
    if (!choice.is_string()) {
      return Bad("choices[", i, "]: is ", choice.type_name(), ", not a string");
    }
    question.choices.push_back(choice.get<std::string>());
    if (question.choices.back().empty()) return Bad("choices[", i, "]: is empty");
  }
  return absl::OkStatus();
}

absl::Status ReadGold(const Json& object, ChoiceQuestion& question) {
  const char* used = nullptr;
  NIBBLE_ASSIGN_OR_RETURN(const Json* const gold, Field(object, "gold", "label", &used));
  if (!gold->is_number_integer()) {
    return Bad(used, ": ", BriefJson(*gold), " is not a whole number");
  }
  const auto count = static_cast<int64_t>(question.choices.size());
  // A number beyond int64 is parsed as unsigned.
  const bool huge =
      gold->is_number_unsigned() && gold->get<uint64_t>() >= static_cast<uint64_t>(count);
  question.gold = huge ? -1 : gold->get<int64_t>();
  if (question.gold >= 0 && question.gold < count) return absl::OkStatus();
  return Bad(used, ": ", gold->dump(), " is not in [0, ", count, "), the choices");
}

}  // namespace

absl::StatusOr<ChoiceQuestion> ParseChoiceQuestion(std::string_view line) {
  if (const size_t bad = FindInvalidUtf8(line); bad != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrFormat("byte %d, 0x%02x, is not UTF-8", bad,
                                                      static_cast<unsigned char>(line[bad])));
  }
  if (NestsDeeperThan(kMaxJsonLineDepth, line))
    return Bad("nested deeper than ", kMaxJsonLineDepth);
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return Bad("is not JSON");
  if (!object.is_object()) return Bad("is ", object.type_name(), ", not an object");
  ChoiceQuestion question;
  const char* used = nullptr;
  NIBBLE_ASSIGN_OR_RETURN(const Json* const context, Field(object, "context", "query", &used));
  if (!context->is_string()) return Bad(used, ": is ", context->type_name(), ", not a string");
  question.context = context->get<std::string>();
  NIBBLE_RETURN_IF_ERROR(ReadChoices(object, question));
  NIBBLE_RETURN_IF_ERROR(ReadGold(object, question));
  if (const auto id = object.find("id"); id != object.end()) {
    if (!id->is_string() && !id->is_number_integer()) {
      return Bad("id: is ", id->type_name(), ", neither a string nor a whole number");
    }
    question.id = id->is_string() ? id->get<std::string>() : id->dump();
  }
  return question;
}

absl::StatusOr<ChoiceReader> ChoiceReader::Open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return ErrnoError(errno, "opening", path);
  ChoiceReader reader(path, file);
  struct stat what = {};
  if (fstat(fileno(file), &what) == 0 && S_ISDIR(what.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a directory"));
  }
  return reader;
}

absl::StatusOr<bool> ChoiceReader::ReadLine(std::string& line) {
  line.clear();
  ++line_;
  int c;
  while ((c = std::getc(file_.get())) != EOF && c != '\n') {
    if (static_cast<int64_t>(line.size()) == kMaxChoiceLine) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ":", line_, ": the line has more than ", kMaxChoiceLine, " bytes"));
    }
    line += static_cast<char>(c);
  }
  if (c == EOF && std::ferror(file_.get()) != 0) {
    return ErrnoError(errno, "reading", path_);
  }
  if (line.ends_with('\r')) line.pop_back();
  return c == '\n' || !line.empty();
}

absl::StatusOr<std::optional<ChoiceQuestion>> ChoiceReader::Next() {
  std::string line;
  do {
    NIBBLE_ASSIGN_OR_RETURN(const bool more, ReadLine(line));
    if (!more) return std::optional<ChoiceQuestion>();
  } while (line.find_first_not_of(" \t") == std::string::npos);
  absl::StatusOr<ChoiceQuestion> question = ParseChoiceQuestion(line);
  if (!question.ok()) {
    return absl::Status(question.status().code(),
                        absl::StrCat(path_, ":", line_, ": ", question.status().message()));
  }
  question->line = line_;
  return std::optional<ChoiceQuestion>(*std::move(question));
}

namespace {

double LogSumExp(absl::Span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

int64_t Largest(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

std::optional<double> StandardError(double accuracy, int64_t questions) {
  if (questions < 2) return std::nullopt;
  return std::sqrt(accuracy * (1 - accuracy) / static_cast<double>(questions - 1));
}

int64_t LongestOf(const ChoiceTokens& question) {
  size_t longest = 0;
  for (const std::vector<int32_t>& choice : question.choices) {
    longest = std::max(longest, choice.size());
  }
  return static_cast<int64_t>(question.context.size() + longest);
}

// Input and output of one call to the decoder.
struct Pieces {
  std::vector<std::unique_ptr<SequenceState>> states;
  std::vector<Decoder::Piece> pieces;

  absl::Status Add(Decoder& decoder, int64_t capacity, absl::Span<const int32_t> tokens,
                   const SequenceState* from) {
    NIBBLE_ASSIGN_OR_RETURN(std::unique_ptr<SequenceState> state, decoder.NewSequence(capacity));
    states.push_back(std::move(state));
    pieces.push_back({states.back().get(), tokens});
    return from == nullptr ? absl::OkStatus() : decoder.CopySequence(*from, *states.back());
  }
};

absl::Status CheckLengths(const Decoder& decoder, absl::Span<const ChoiceTokens> questions) {
  for (size_t q = 0; q < questions.size(); ++q) {
    for (size_t c = 0; c < questions[q].choices.size(); ++c) {
      // The last token of a choice is not run.
      const absl::Status status = decoder.CheckLength(
          static_cast<int64_t>(questions[q].context.size() + questions[q].choices[c].size() - 1));
      if (status.ok()) continue;
      const std::string which = questions.size() == 1 ? "" : absl::StrCat("question ", q, ", ");
      return absl::Status(status.code(),
                          absl::StrCat(which, "choices[", c, "]: ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChoiceTokens> TokenizeQuestion(const Tokenizer& tokenizer,
                                              const ChoiceQuestion& question,
                                              const std::string& delimiter) {
  std::string_view context = question.context;
  const size_t text = context.find_last_not_of(" \t\n\r\f\v");
  const std::string_view spaces = context.substr(text == std::string_view::npos ? 0 : text + 1);
  context.remove_suffix(spaces.size());

  ChoiceTokens tokens;
  NIBBLE_ASSIGN_OR_RETURN(tokens.context, tokenizer.Encode(context));
  const size_t condition = tokens.context.size();
  for (size_t c = 0; c < question.choices.size(); ++c) {
    NIBBLE_ASSIGN_OR_RETURN(const std::vector<int32_t> encoded,
                            tokenizer.Encode(absl::StrCat(std::string(context), std::string(spaces),
                                                          delimiter, question.choices[c])));
    if (encoded.size() <= condition) {
      return absl::InvalidArgumentError(absl::StrCat(
          "choices[", c, "]: has no token of its own behind the context's ", condition));
    }
    tokens.choices.emplace_back(encoded.begin() + static_cast<int64_t>(condition), encoded.end());
  }
  if (tokens.context.empty()) tokens.context.push_back(tokenizer.end_of_document());
  return tokens;
}

absl::StatusOr<std::vector<std::vector<double>>> ScoreChoices(
    Decoder& decoder, absl::Span<const ChoiceTokens> questions) {
  absl::Status status = CheckLengths(decoder, questions);
  if (!status.ok()) return status;
  Pieces contexts;
  for (const ChoiceTokens& question : questions) {
    status = contexts.Add(decoder, static_cast<int64_t>(question.context.size()), question.context,
                          nullptr);
    if (!status.ok()) return status;
  }
  // The first token of each choice, from the context's last logits.
  std::vector<std::vector<double>> scores(questions.size());
  status = decoder.Run(
      contexts.pieces, Decoder::Wanted::kLast,
      [&](absl::Span<const Decoder::Place> places, float* logits) {
        const auto vocab = static_cast<size_t>(decoder.vocab());
        for (size_t i = 0; i < places.size(); ++i) {
          const auto q = static_cast<size_t>(places[i].piece);
          const absl::Span<const float> row(logits + i * vocab, vocab);
          const double total = LogSumExp(row);
          for (const std::vector<int32_t>& choice : questions[q].choices) {
            if (choice[0] < 0 || choice[0] >= decoder.vocab()) {
              return absl::InvalidArgumentError(absl::StrCat(
                  "token ", choice[0], " of a choice is outside the vocabulary [0, ", vocab, ")"));
            }
            scores[q].push_back(row[static_cast<size_t>(choice[0])] - total);
          }
        }
        return absl::OkStatus();
      });
  if (!status.ok()) return status;

  // The others, all choices together, each from a copy of its context's state.
  Pieces rest;
  std::vector<absl::Span<const int32_t>> targets;
  std::vector<std::vector<float>> losses;
  std::vector<double*> to;
  for (size_t q = 0; q < questions.size(); ++q) {
    const auto context = static_cast<int64_t>(questions[q].context.size());
    for (size_t c = 0; c < questions[q].choices.size(); ++c) {
      const absl::Span<const int32_t> choice = questions[q].choices[c];
      if (choice.size() == 1) continue;
      status = rest.Add(decoder, context + static_cast<int64_t>(choice.size()) - 1,
                        choice.first(choice.size() - 1), contexts.states[q].get());
      if (!status.ok()) return status;
      targets.push_back(choice.subspan(1));
      losses.emplace_back(choice.size() - 1);
      to.push_back(&scores[q][c]);
    }
  }
  std::vector<absl::Span<float>> spans;
  for (std::vector<float>& loss : losses) spans.push_back(absl::MakeSpan(loss));
  status = decoder.Losses(rest.pieces, targets, spans);
  if (!status.ok()) return status;
  for (size_t i = 0; i < losses.size(); ++i) {
    for (const float loss : losses[i]) *to[i] -= loss;
  }
  return scores;
}

ChoiceScore Summarize(absl::Span<const Answer> answers) {
  ChoiceScore score = {.questions = static_cast<int64_t>(answers.size())};
  if (answers.empty()) return score;
  for (const Answer& answer : answers) {
    score.accuracy += answer.chosen == answer.gold ? 1 : 0;
    score.accuracy_norm += answer.chosen_norm == answer.gold ? 1 : 0;
  }
  score.accuracy /= static_cast<double>(answers.size());
  score.accuracy_norm /= static_cast<double>(answers.size());
  score.standard_error = StandardError(score.accuracy, score.questions);
  score.standard_error_norm = StandardError(score.accuracy_norm, score.questions);
  return score;
}

absl::StatusOr<std::vector<Answer>> AnswerFile(Decoder& decoder, const Tokenizer& tokenizer,
                                               const std::string& path,
                                               const ChoiceOptions& options) {
  NIBBLE_ASSIGN_OR_RETURN(ChoiceReader reader, ChoiceReader::Open(path));
  std::vector<Answer> answers;
  std::vector<ChoiceQuestion> questions;
  std::vector<ChoiceTokens> tokens;
  int64_t context_tokens = 0;
  const auto answer_some = [&]() -> absl::Status {
    if (questions.empty()) return absl::OkStatus();
    absl::StatusOr<std::vector<std::vector<double>>> scores = ScoreChoices(decoder, tokens);
    if (!scores.ok()) {
      return absl::Status(
          scores.status().code(),
          absl::StrCat(path, ":", questions.front().line, " and on: ", scores.status().message()));
    }
    for (size_t q = 0; q < questions.size(); ++q) {
      Answer& answer = answers.emplace_back(Answer{.line = questions[q].line,
                                                   .id = questions[q].id,
                                                   .gold = questions[q].gold,
                                                   .tokens = LongestOf(tokens[q]),
                                                   .log_likelihoods = (*scores)[q]});
      std::vector<double> per_byte = answer.log_likelihoods;
      for (size_t c = 0; c < per_byte.size(); ++c) {
        if (!std::isfinite(per_byte[c])) {
          return absl::DataLossError(absl::StrCat(path, ":", answer.line, ": choices[", c,
                                                  "]: its log-likelihood is ", per_byte[c]));
        }
        per_byte[c] /= static_cast<double>(questions[q].choices[c].size());
      }
      answer.chosen = Largest(answer.log_likelihoods);
      answer.chosen_norm = Largest(per_byte);
    }
    questions.clear();
    tokens.clear();
    context_tokens = 0;
    return absl::OkStatus();
  };
  while (options.max_questions == 0 ||
         static_cast<int64_t>(answers.size() + questions.size()) < options.max_questions) {
    NIBBLE_ASSIGN_OR_RETURN(std::optional<ChoiceQuestion> question, reader.Next());
    if (!question.has_value()) break;
    absl::StatusOr<ChoiceTokens> encoded =
        TokenizeQuestion(tokenizer, *question, options.delimiter);
    absl::Status status = encoded.ok() ? CheckLengths(decoder, {&*encoded, 1}) : encoded.status();
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat(path, ":", question->line, ": ", status.message()));
    }
    context_tokens += static_cast<int64_t>(encoded->context.size());
    questions.push_back(*std::move(question));
    tokens.push_back(*std::move(encoded));
    if (context_tokens < decoder.options().pass_tokens) continue;
    status = answer_some();
    if (!status.ok()) return status;
  }
  NIBBLE_RETURN_IF_ERROR(answer_some());
  if (answers.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": there are no questions in it"));
  }
  return answers;
}

}  // namespace nibble
