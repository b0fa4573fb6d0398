// Multiple-choice questions, one JSON object to a line:
//   {"context": "...", "choices": ["...", "..."], "gold": 0, "id": "..."}
// "query" may stand for "context", "label" for "gold"; "id" is optional, a string or a whole
// number; other keys are passed over. Empty lines are too.
//
// Ownership: a reader owns its file. Thread-safety: one thread at a time.
#ifndef NIBBLE_WORKER_INFER_EVAL_CHOICE_FILE_H_
#define NIBBLE_WORKER_INFER_EVAL_CHOICE_FILE_H_

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble {

inline constexpr int64_t kMaxChoiceLine = int64_t{1} << 24;  // bytes
inline constexpr int64_t kMaxChoices = 1024;

struct ChoiceQuestion {
  int64_t line = 0;  // from 1
  std::string id;    // empty: none
  std::string context;
  std::vector<std::string> choices;  // none of them empty
  int64_t gold = 0;                  // index of the right one
};

// InvalidArgument naming the field, its value and what is allowed.
absl::StatusOr<ChoiceQuestion> ParseChoiceQuestion(std::string_view line);

class ChoiceReader {
 public:
  // NotFound, PermissionDenied, … with the path.
  static absl::StatusOr<ChoiceReader> Open(const std::string& path);

  // The next question, or nothing at the end. Errors are those of the line, behind "path:line: ",
  // and of reading the file.
  absl::StatusOr<std::optional<ChoiceQuestion>> Next();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  ChoiceReader(std::string path, std::FILE* file) : path_(std::move(path)), file_(file) {}

  // Whether there was a line; `line` without its end.
  absl::StatusOr<bool> ReadLine(std::string& line);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  int64_t line_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_INFER_EVAL_CHOICE_FILE_H_
