// Text files to token shards: one to train on, one of held-out documents to validate on.
//
// Ownership: none kept. Thread-safety: calls are independent unless they write to one directory.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TEXT_SHARDS_H_
#define NIBBLE_WORKER_TRAINER_DATA_TEXT_SHARDS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/data/document_split.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

// How far a call of PrepareText() has come.
struct TextProgress {
  int64_t bytes = 0;  // of the files, up to where their text is tokenized
  int64_t total_bytes = 0;
  int64_t documents = 0;
  int64_t tokens = 0;
};

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
  // That tokenize, the caller included; 0: one per processor. Shards do not depend on it.
  int threads = 1;
  // Called in the caller's thread for every document and every 64 KiB or so of a long one; the last
  // call, after the last document, has bytes == total_bytes.
  std::function<void(const TextProgress&)> progress;
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

// What PrepareText() refuses before it reads any text: options out of bounds and shards that are
// there and may not be replaced. For callers that have long work to do before.
absl::Status CheckPrepareText(const PrepareTextOptions& options);

// Each document goes to one shard, with the tokenizer's end of document behind it: a held-out
// document never occurs in training (copies of it under other numbers may: see hold_out.h). Equal
// files and options give equal bytes. Shards appear when both are complete, and a new one never
// stands beside an old one; on an error neither appears.
//
//   InvalidArgument  an option out of bounds, an input that is no text or none that the tokenizer
//                    takes (names file, document and byte), or a shard that would hold no document
//   AlreadyExists    a shard is there and may not be replaced
//   any other        of reading and writing files
absl::StatusOr<PreparedText> PrepareText(const PrepareTextOptions& options,
                                         const Tokenizer& tokenizer);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TEXT_SHARDS_H_
