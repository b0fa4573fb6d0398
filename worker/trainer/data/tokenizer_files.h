// Tokenizers as files: read from whatever a person names, and kept beside the shards and runs that
// use them, under a name that follows from the label that those carry.
//
// Ownership: none kept. Thread-safety: pure functions of the file system.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_FILES_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_FILES_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

// The tokenizer that a person names: "bytes", a SentencePiece .model file, a tokenizer.json of
// Hugging Face's. The file's content tells its kind.
//
//   any error  as SentencePieceTokenizer::Load() or BpeTokenizer::Load()
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& named);

// What a tokenizer's file is called beside its shards: "sp-....model" of the label "sp:...",
// "hf-....json" of "hf:..."; empty for any other label.
std::string TokenizerFileName(std::string_view label);

// Writes a tokenizer's file to the directory, which is made if need be (its parent exists), under
// that name, and returns the path; empty for one that needs no file. A file of the same content may
// be there.
//
//   DataLoss   a file of that name is there and holds something else
//   any other  of reading and writing files
absl::StatusOr<std::string> SaveTokenizer(const std::string& directory, const Tokenizer& tokenizer);

// The tokenizer of a label: "bytes", or that of the label's file in the directory.
//
//   InvalidArgument  the label is of no kind that is read here, or the file is not that label's
//   NotFound, ...    as LoadTokenizer()
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& label,
                                                         const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_FILES_H_
