// Text files and directories of them as one sequence of documents: the same files give the same
// documents in the same order, on any machine.
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
//   InvalidArgument     no inputs, no files in them, or a file in them twice
//   FailedPrecondition  an input is neither a regular file nor a directory
//   NotFound, PermissionDenied, ...  what the system said
absl::StatusOr<std::vector<std::string>> ListTextFiles(absl::Span<const std::string> inputs,
                                                       absl::Span<const std::string> extensions);

// The files' sizes in bytes, in their order.
absl::StatusOr<std::vector<int64_t>> FileSizes(absl::Span<const std::string> files);

struct CorpusDocument {
  int64_t number = 0;     // counted over all files, from 0
  size_t file = 0;        // its place among the files
  int64_t offset = 0;     // in the file, in bytes
  std::string_view text;  // for the length of the call
};

// Feeds every document of the files to the sink. Stops at the first error: the sink's, that of a
// file, or InvalidArgument naming file and offset for a zero byte, which no text has.
absl::Status ForEachDocument(absl::Span<const std::string> files, const DocumentSplit& split,
                             absl::FunctionRef<absl::Status(const CorpusDocument&)> sink);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TEXT_CORPUS_H_
