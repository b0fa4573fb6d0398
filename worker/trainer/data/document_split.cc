#include "worker/trainer/data/document_split.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"

namespace nibble {
namespace {

using Sink = absl::FunctionRef<absl::Status(std::string_view)>;

// Where the line that begins at `begin` ends, its line feed included.
size_t LineEnd(std::string_view text, size_t begin) {
  const size_t feed = text.find('\n', begin);
  return feed == std::string_view::npos ? text.size() : feed + 1;
}

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

absl::Status SplitParagraphs(std::string_view text, size_t min_bytes, Sink sink) {
  size_t begin = 0;
  bool after_blank = false;
  for (size_t line = 0; line < text.size();) {
    const size_t end = LineEnd(text, line);
    const bool blank = IsBlank(text.substr(line, end - line));
    if (after_blank && !blank && line - begin >= min_bytes && text.size() - line >= min_bytes) {
      absl::Status status = sink(text.substr(begin, line - begin));
      if (!status.ok()) return status;
      begin = line;
    }
    after_blank = blank;
    line = end;
  }
  return begin == text.size() ? absl::OkStatus() : sink(text.substr(begin));
}

absl::Status SplitAtLines(std::string_view text, std::string_view delimiter, Sink sink) {
  size_t begin = 0;
  for (size_t line = 0; line < text.size();) {
    const size_t end = LineEnd(text, line);
    std::string_view content = text.substr(line, end - line);
    if (!content.empty() && content.back() == '\n') content.remove_suffix(1);
    if (!content.empty() && content.back() == '\r') content.remove_suffix(1);
    if (content == delimiter) {
      if (line > begin) {
        absl::Status status = sink(text.substr(begin, line - begin));
        if (!status.ok()) return status;
      }
      begin = end;
    }
    line = end;
  }
  return begin == text.size() ? absl::OkStatus() : sink(text.substr(begin));
}

}  // namespace

absl::Status Validate(const DocumentSplit& split) {
  if (split.rule == SplitRule::kParagraphs && split.min_bytes < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("min_bytes is %d, not at least 1", split.min_bytes));
  }
  if (split.rule == SplitRule::kLine &&
      (split.delimiter.empty() || split.delimiter.find('\n') != std::string::npos ||
       split.delimiter.back() == '\r')) {
    return absl::InvalidArgumentError(
        absl::StrFormat("delimiter is \"%s\", not the content of one line without its end",
                        absl::CHexEscape(split.delimiter)));
  }
  if (split.text_field.empty()) return absl::InvalidArgumentError("text_field is empty");
  return absl::OkStatus();
}

absl::Status SplitDocuments(std::string_view text, const DocumentSplit& split, Sink sink) {
  if (absl::Status status = Validate(split); !status.ok()) return status;
  if (text.empty()) return absl::OkStatus();
  switch (split.rule) {
    case SplitRule::kFile:
      return sink(text);
    case SplitRule::kParagraphs:
      return SplitParagraphs(text, static_cast<size_t>(split.min_bytes), sink);
    case SplitRule::kLine:
      return SplitAtLines(text, split.delimiter, sink);
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("rule is %d, none of SplitRule", static_cast<int>(split.rule)));
}

}  // namespace nibble
