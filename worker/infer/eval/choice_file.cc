#include "worker/infer/eval/choice_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/trainer/data/utf8.h"

namespace nibble {
namespace {

using Json = nlohmann::json;

template <class... Piece>
absl::Status Bad(const Piece&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat(pieces...));
}

// The value of `name` or of `other`, which means the same.
absl::StatusOr<const Json*> Field(const Json& object, const char* name, const char* other,
                                  const char** used) {
  const auto a = object.find(name), b = object.find(other);
  if (a != object.end() && b != object.end()) {
    return Bad(other, ": says the same as ", name, ", which is there too");
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
  const absl::StatusOr<const Json*> gold = Field(object, "gold", "label", &used);
  if (!gold.ok()) return gold.status();
  if (!(*gold)->is_number_integer()) {
    return Bad(used, ": ", (*gold)->dump(-1, ' ', false, Json::error_handler_t::replace),
               " is no whole number");
  }
  const auto count = static_cast<int64_t>(question.choices.size());
  // A number above what an int64 holds comes as an unsigned one.
  const bool huge =
      (*gold)->is_number_unsigned() && (*gold)->get<uint64_t>() >= static_cast<uint64_t>(count);
  question.gold = huge ? -1 : (*gold)->get<int64_t>();
  if (question.gold >= 0 && question.gold < count) return absl::OkStatus();
  return Bad(used, ": ", (*gold)->dump(), " is not in [0, ", count, "), the choices");
}

}  // namespace

absl::StatusOr<ChoiceQuestion> ParseChoiceQuestion(std::string_view line) {
  if (const size_t bad = FindInvalidUtf8(line); bad != std::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrFormat("byte %d, 0x%02x, is no UTF-8", bad,
                                                      static_cast<unsigned char>(line[bad])));
  }
  const Json object = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return Bad("is no JSON");
  if (!object.is_object()) return Bad("is ", object.type_name(), ", not an object");
  ChoiceQuestion question;
  const char* used = nullptr;
  const absl::StatusOr<const Json*> context = Field(object, "context", "query", &used);
  if (!context.ok()) return context.status();
  if (!(*context)->is_string())
    return Bad(used, ": is ", (*context)->type_name(), ", not a string");
  question.context = (*context)->get<std::string>();
  absl::Status status = ReadChoices(object, question);
  if (status.ok()) status = ReadGold(object, question);
  if (!status.ok()) return status;
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
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
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
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path_));
  }
  if (line.ends_with('\r')) line.pop_back();
  return c == '\n' || !line.empty();
}

absl::StatusOr<std::optional<ChoiceQuestion>> ChoiceReader::Next() {
  std::string line;
  do {
    const absl::StatusOr<bool> more = ReadLine(line);
    if (!more.ok()) return more.status();
    if (!*more) return std::optional<ChoiceQuestion>();
  } while (line.find_first_not_of(" \t") == std::string::npos);
  absl::StatusOr<ChoiceQuestion> question = ParseChoiceQuestion(line);
  if (!question.ok()) {
    return absl::Status(question.status().code(),
                        absl::StrCat(path_, ":", line_, ": ", question.status().message()));
  }
  question->line = line_;
  return std::optional<ChoiceQuestion>(*std::move(question));
}

}  // namespace nibble
