// What `nibble data tokenize` does: chooses or trains the tokenizer, makes the shards, says so.
//
// Ownership: none kept. Thread-safety: calls are independent unless they write to one directory.
#ifndef NIBBLE_CLIENT_LOCAL_DATA_TOKENIZE_H_
#define NIBBLE_CLIENT_LOCAL_DATA_TOKENIZE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/trainer/data/sentencepiece_training.h"
#include "worker/trainer/data/text_shards.h"

namespace nibble {

struct TokenizeRequest {
  PrepareTextOptions text;  // all but `progress`
  // As LoadTokenizer() takes it; empty: bytes, or the one that `training` makes.
  std::string tokenizer;
  // Of which vocabulary 0 means that none is trained.
  SentencePieceTraining training;
  int64_t sample_bytes = int64_t{1} << 26;  // of text to train on
  bool json = false;
};

// Takes one line about what goes on, without its end.
using Say = std::function<void(std::string_view line)>;

// The text for stdout. The tokenizer's file, if it has one, lies beside the shards afterwards (see
// tokenizer_files.h).
absl::StatusOr<std::string> RunTokenize(const TokenizeRequest& request, const Say& say);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_DATA_TOKENIZE_H_
