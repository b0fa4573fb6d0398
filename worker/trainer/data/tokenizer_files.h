// Where the tokenizer of a shard is found again: a SentencePiece model lies beside the shards that
// it made, under a name that follows from the label they carry.
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

// Writes a model's bytes to the directory, which is made if need be (its parent exists), as
// SentencePieceFileName() of its label, and gives the path. A file of the same content may be
// there.
//
//   DataLoss   a file of that name is there and holds something else
//   any other  of reading and writing files
absl::StatusOr<std::string> SaveSentencePieceModel(const std::string& directory,
                                                   std::string_view model);

// The same of a .model file, wherever it lies. Errors also as SentencePieceTokenizer::Load().
absl::StatusOr<std::string> CopySentencePieceModel(const std::string& directory,
                                                   const std::string& model_path);

// The tokenizer of a label: "bytes", or the SentencePiece model of "sp:…" from the directory.
//
//   InvalidArgument  a label of neither kind, or the file is no model of that label
//   NotFound, ...    as SentencePieceTokenizer::Load()
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& label,
                                                         const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_FILES_H_
