// Multiple-choice evaluation by log-likelihood, scored as the Language Model Evaluation Harness
// does: the answer is the choice with the highest log-likelihood after the context; acc compares
// log-likelihoods, acc_norm divides each by its choice's length in bytes.
//
// Tokens: context and choice are one text, context + delimiter + choice. The context's own tokens
// are the condition and the tokens after them are scored; trailing spaces of the context are scored
// with the choice. The context runs once for all choices.
//
// Questions are read from a file of JSON objects, one per line:
//   {"context": "...", "choices": ["...", "..."], "gold": 0, "id": "..."}
// "query" is an alias of "context", "label" of "gold"; "id" is optional, a string or an integer;
// other keys and empty lines are ignored.
//
// Ownership: borrows decoder and tokenizer; a reader owns its file. Thread-safety: as Decoder; a
// reader: one thread at a time.
#ifndef NIBBLE_WORKER_INFER_EVAL_MULTIPLE_CHOICE_H_
#define NIBBLE_WORKER_INFER_EVAL_MULTIPLE_CHOICE_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/infer/decoder.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

inline constexpr int64_t kMaxChoiceLine = int64_t{1} << 24;  // bytes
inline constexpr int64_t kMaxChoices = 1024;

struct ChoiceQuestion {
  int64_t line = 0;  // from 1
  std::string id;    // empty: none
  std::string context;
  std::vector<std::string> choices;  // none of them empty
  int64_t gold = 0;                  // index of the right choice
};

// InvalidArgument naming the field, its value and what is allowed.
absl::StatusOr<ChoiceQuestion> ParseChoiceQuestion(std::string_view line);

class ChoiceReader {
 public:
  // NotFound, PermissionDenied, … with the path.
  static absl::StatusOr<ChoiceReader> Open(const std::string& path);

  // The next question, or nullopt at the end. Errors of the line, prefixed with "path:line: ", and
  // of reading the file.
  absl::StatusOr<std::optional<ChoiceQuestion>> Next();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  ChoiceReader(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  // False at the end of the file; `line` has no newline.
  absl::StatusOr<bool> ReadLine(std::string& line);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t line_ = 0;
};

// One question as tokens. An empty context becomes the end-of-document token.
struct ChoiceTokens {
  std::vector<int32_t> context;
  std::vector<std::vector<int32_t>> choices;
};
// InvalidArgument, naming the choice, if no token follows the context's; otherwise as
// Tokenizer::Encode.
absl::StatusOr<ChoiceTokens> TokenizeQuestion(const Tokenizer& tokenizer,
                                              const ChoiceQuestion& question,
                                              const std::string& delimiter);

// ln p(choice | context) of every choice of every question, in order. The questions run in one
// batch, so pass a few at a time. OutOfRange, naming the choice that is too long and, of several
// questions, the question, counted from 0.
absl::StatusOr<std::vector<std::vector<double>>> ScoreChoices(
    Decoder& decoder, absl::Span<const ChoiceTokens> questions);

struct Answer {
  int64_t line = 0;
  std::string id;
  int64_t gold = 0;
  int64_t tokens = 0;  // of the context with its longest choice
  std::vector<double> log_likelihoods;
  int64_t chosen = 0;       // of equal ones the first
  int64_t chosen_norm = 0;  // by log-likelihood per byte
};

struct ChoiceScore {
  int64_t questions = 0;
  double accuracy = 0;
  double accuracy_norm = 0;
  // Standard errors of the means over questions, each 0 or 1; none for a single question.
  std::optional<double> standard_error, standard_error_norm;
};
ChoiceScore Summarize(absl::Span<const Answer> answers);

struct ChoiceOptions {
  std::string delimiter = " ";
  int64_t max_questions = 0;  // at most this number, from the first; 0: all
};
// Reads and answers the questions of a file. Errors name the file and the line. InvalidArgument
// also for a file without questions; DataLoss if a log-likelihood is not finite.
absl::StatusOr<std::vector<Answer>> AnswerFile(Decoder& decoder, const Tokenizer& tokenizer,
                                               const std::string& path,
                                               const ChoiceOptions& options);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_EVAL_MULTIPLE_CHOICE_H_
