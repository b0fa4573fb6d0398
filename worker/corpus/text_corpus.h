// Text files as one sequence of documents: the same files give the same documents in the same order
// on any machine. Splits a text into documents; lists and reads the files of a corpus.
//
// Files may be compressed (see OpenExpanded()); each line of one named .jsonl or .ndjson is a JSON
// object with a document.
//
// Ownership: documents are views of the text, valid during a call; files are mapped one at a time
// and only during a call. Thread-safety: the functions depend on nothing but the file system.
#ifndef NIBBLE_WORKER_CORPUS_TEXT_CORPUS_H_
#define NIBBLE_WORKER_CORPUS_TEXT_CORPUS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

enum class SplitRule : uint8_t {
  kFile,        // a file is a document
  kParagraphs,  // cut where a line follows a blank one and both sides have min_bytes
  kLine,        // cut at lines that equal the delimiter, which belong to no document
};

// What becomes of a document with a zero byte, which text does not have but crawls do.
enum class ControlRule : uint8_t {
  kSkip,    // it is left out and counted
  kKeep,    // it is a document as any other
  kRefuse,  // it is an error
};

struct DocumentSplit {
  SplitRule rule = SplitRule::kFile;
  // For kParagraphs: the least size of a document, unless its file is smaller. At least 1. A blank
  // line contains only spaces, tabs and carriage returns; documents keep theirs, so that their
  // concatenation is the file.
  int64_t min_bytes = 1024;
  // For kLine: a whole line, without its line feed and a carriage return before that. Not empty.
  std::string delimiter;
  // The member of a .jsonl or .ndjson file's objects that is the document, a string. The rule does
  // not apply to these files. Not empty.
  std::string text_field = "text";
  ControlRule control = ControlRule::kSkip;
};

// InvalidArgument naming the field, its value and its bound.
absl::Status Validate(const DocumentSplit& split);

// Feeds the documents of `text`, the content of one file, to the sink in order, except empty ones.
// Stops at the sink's first error and returns it; other errors as Validate().
absl::Status SplitDocuments(std::string_view text, const DocumentSplit& split,
                            absl::FunctionRef<absl::Status(std::string_view)> sink);

// The files of a corpus: inputs in the order given, the files of a directory, at any depth, in the
// byte order of their paths. In a directory only regular files and links to them count, and only
// those whose names end with one of `extensions`, if any are given; links to directories are not
// followed.
//
// A file whose name means another kind of data (.parquet, .zip) is rejected, and so is an input
// whose name means text that is not prose (.csv, .json); inside directories the latter are text.
//
//   InvalidArgument     no inputs, no files in them, the same file twice, or one of another kind
//   FailedPrecondition  an input is neither a regular file nor a directory
//   NotFound, PermissionDenied, ...  the system's error
absl::StatusOr<std::vector<std::string>> ListTextFiles(absl::Span<const std::string> inputs,
                                                       absl::Span<const std::string> extensions);

// The size of each file in bytes, after expansion. Errors as ExpandedSize().
absl::StatusOr<std::vector<int64_t>> FileSizes(absl::Span<const std::string> files);

struct CorpusDocument {
  int64_t number = 0;     // over all files, from 0
  size_t file = 0;        // index of its file
  int64_t offset = 0;     // in the expanded file, in bytes; of its line for JSON
  std::string_view text;  // valid during the call
};

// Documents that ControlRule::kSkip left out.
struct SkippedDocuments {
  int64_t count = 0;
  std::string first;  // where the first one is: its file, and the byte or the line in it
};
// "2 documents with a zero byte were skipped, the first at a.txt: byte 17"
std::string SkippedText(const SkippedDocuments& skipped);

// Feeds every document of the files to the sink, except empty lines and objects with empty text,
// and those that split.control skips: they get no number, as if the files did not have them, and
// are added to `skipped` unless that is null. Stops at the first error: the sink's, a file's, or
// InvalidArgument with file and offset for a zero byte that split.control refuses, or with file and
// line for JSON without the text field, or nested deeper than kMaxJsonLineDepth; also for a Parquet
// file of any name.
absl::Status ForEachDocument(absl::Span<const std::string> files, const DocumentSplit& split,
                             absl::FunctionRef<absl::Status(const CorpusDocument&)> sink,
                             SkippedDocuments* skipped = nullptr);

}  // namespace nibble

#endif  // NIBBLE_WORKER_CORPUS_TEXT_CORPUS_H_
