// Multiple choice by log-likelihood, as the language model evaluation harness counts it: a question
// is answered with the choice whose text the model finds likeliest behind the context; acc counts
// log-likelihoods as they are, acc_norm divides each by its choice's bytes.
//
// Tokens: context and choice are one text, context + delimiter + choice, of which the context's own
// tokens are the condition and those behind them are scored; spaces at the context's end are scored
// with the choice. The context is run once for all choices.
//
// Ownership: borrows decoder and tokenizer. Thread-safety: as Decoder.
#ifndef NIBBLE_WORKER_INFER_EVAL_MULTIPLE_CHOICE_H_
#define NIBBLE_WORKER_INFER_EVAL_MULTIPLE_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/infer/decoder.h"
#include "worker/infer/eval/choice_file.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

// One question as tokens. An empty context is the end of a document.
struct ChoiceTokens {
  std::vector<int32_t> context;
  std::vector<std::vector<int32_t>> choices;
};
// InvalidArgument naming the choice of which no token is left behind the context's; otherwise as
// Tokenizer::Encode.
absl::StatusOr<ChoiceTokens> TokenizeQuestion(const Tokenizer& tokenizer,
                                              const ChoiceQuestion& question,
                                              const std::string& delimiter);

// ln p(choice | context) of every choice of every question, in their order. The questions run
// together: give some at a time. OutOfRange naming the choice, and of several
// questions the question from 0, that is too long.
absl::StatusOr<std::vector<std::vector<double>>> ScoreChoices(
    Decoder& decoder, absl::Span<const ChoiceTokens> questions);

struct Answer {
  int64_t line = 0;
  std::string id;
  int64_t gold = 0;
  std::vector<double> log_likelihoods;
  int64_t chosen = 0;       // of equals the first
  int64_t chosen_norm = 0;  // by log-likelihood per byte
};

struct ChoiceScore {
  int64_t questions = 0;
  double accuracy = 0;
  double accuracy_norm = 0;
  // Of the mean over questions, each of which counts 0 or 1; none for a single question.
  std::optional<double> standard_error, standard_error_norm;
};
ChoiceScore Summarize(absl::Span<const Answer> answers);

struct ChoiceOptions {
  std::string delimiter = " ";
  int64_t max_questions = 0;  // the first so many only; 0: all
};
// Reads and answers the questions of a file. Errors name the file and the line. InvalidArgument
// also for a file without questions; DataLoss where the model gives no finite log-likelihood.
absl::StatusOr<std::vector<Answer>> AnswerFile(Decoder& decoder, const Tokenizer& tokenizer,
                                               const std::string& path,
                                               const ChoiceOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_EVAL_MULTIPLE_CHOICE_H_
