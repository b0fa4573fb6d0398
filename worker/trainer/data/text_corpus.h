// Text files and directories of them as one sequence of documents: the same files give the same
// documents in the same order, on any machine. Files may be compressed (see expanded_file.h), and
// those named .jsonl or .ndjson have a JSON object with a document on each line.
//
// Ownership: files are mapped one at a time and only for the length of a call.
// Thread-safety: pure functions of the file system.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TEXT_CORPUS_H_
#define NIBBLE_WORKER_TRAINER_DATA_TEXT_CORPUS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/document_split.h"

namespace nibble {

// The files of a corpus: inputs in the order given, a directory's files, at any depth, in the
// order of their paths' bytes. Of a directory only regular files and links to such count, and only
// those whose names end with one of `extensions`, where there are any; links to directories are
// not followed.
//
// A file whose name is of another kind of data (.parquet, .zip) is refused; so is one of a kind
// that is text but not prose (.csv, .json) where an input names it: in directories those are text.
//
//   InvalidArgument     no inputs, no files in them, a file in them twice, or one of another kind
//   FailedPrecondition  an input is neither a regular file nor a directory
//   NotFound, PermissionDenied, ...  what the system said
absl::StatusOr<std::vector<std::string>> ListTextFiles(absl::Span<const std::string> inputs,
                                                       absl::Span<const std::string> extensions);

// The files' sizes in bytes, in their order; of compressed ones when expanded. Errors also as
// ExpandedSize().
absl::StatusOr<std::vector<int64_t>> FileSizes(absl::Span<const std::string> files);

struct CorpusDocument {
  int64_t number = 0;     // counted over all files, from 0
  size_t file = 0;        // its place among the files
  int64_t offset = 0;     // in the file when expanded, in bytes; of JSON that of its line
  std::string_view text;  // for the length of the call
};

// Feeds every document of the files to the sink. Stops at the first error: the sink's, that of a
// file, or InvalidArgument naming file and offset for a zero byte, which no text has, and file and
// line for JSON that is no such object. Objects whose text is empty and empty lines are left out.
absl::Status ForEachDocument(absl::Span<const std::string> files, const DocumentSplit& split,
                             absl::FunctionRef<absl::Status(const CorpusDocument&)> sink);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TEXT_CORPUS_H_
