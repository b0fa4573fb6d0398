// Text files to token shards: one to train on, one of held-out documents to validate on.
//
// Ownership: none kept. Thread-safety: calls are independent unless they write to one directory.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TEXT_SHARDS_H_
#define NIBBLE_WORKER_TRAINER_DATA_TEXT_SHARDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

struct PrepareTextOptions {
  std::vector<std::string> inputs;      // files and directories: see ListTextFiles()
  std::vector<std::string> extensions;  // of a directory's files; none: all
  DocumentSplit split;
  // Made if need be; its parent exists. Gets "train.tokens" and "validation.tokens".
  std::string output_dir;
  double validation_fraction = 0;  // of the documents, in [0, 1); 0: no validation shard
  uint64_t seed = 0;               // of which documents are held out
  // Replaces shards of an earlier call; otherwise their presence is an error.
  bool overwrite = false;
};

struct TextShard {
  std::string path;
  int64_t documents = 0;
  int64_t tokens = 0;  // with ends of documents
  int64_t bytes = 0;   // of text
};

struct PreparedText {
  int64_t files = 0;
  TextShard train;
  std::optional<TextShard> validation;
};

// Each document goes to one shard, with the tokenizer's end of document behind it: a held-out
// document never occurs in training (copies of it under other numbers may: see hold_out.h). Equal
// files and options give equal bytes. Shards appear when both are complete, and a new one never
// stands beside an old one; on an error neither appears.
//
//   InvalidArgument  an option out of bounds, an input that is no text, or a shard that would hold
//                    no document
//   AlreadyExists    a shard is there and may not be replaced
//   any other        of reading and writing files
absl::StatusOr<PreparedText> PrepareText(const PrepareTextOptions& options,
                                         const Tokenizer& tokenizer);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TEXT_SHARDS_H_
