// Where one document of a text ends and the next begins.
//
// Ownership: documents are views of the text. Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_DOCUMENT_SPLIT_H_
#define NIBBLE_WORKER_TRAINER_DATA_DOCUMENT_SPLIT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace nibble {

enum class SplitRule : uint8_t {
  kFile,        // a file is a document
  kParagraphs,  // cut where a line follows a blank one and both sides have min_bytes
  kLine,        // lines that are the delimiter stand between documents and belong to none
};

struct DocumentSplit {
  SplitRule rule = SplitRule::kFile;
  // Of kParagraphs: no document is shorter, unless its file is. At least 1. A blank line holds
  // nothing but spaces, tabs and carriage returns; documents keep theirs, so that put together
  // they are the file.
  int64_t min_bytes = 1024;
  // Of kLine: a whole line, without its line feed and a carriage return before that. Not empty.
  std::string delimiter;
  // Files named .jsonl or .ndjson are not cut by the rule: each line is a JSON object, and this
  // member of it, a string, is a document. Not empty.
  std::string text_field = "text";
};

// InvalidArgument naming the field, its value and its bound.
absl::Status Validate(const DocumentSplit& split);

// Feeds the documents of `text`, one file's, to the sink in order; empty ones are left out. Stops
// at the sink's first error, which it returns; otherwise as Validate().
absl::Status SplitDocuments(std::string_view text, const DocumentSplit& split,
                            absl::FunctionRef<absl::Status(std::string_view)> sink);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_DOCUMENT_SPLIT_H_
