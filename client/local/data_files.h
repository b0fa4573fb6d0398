// What the verbs of `nibble data` do: make token shards from text, inspect and verify token files
// of any format that token_source.h reads.
//
// Ownership: none kept. Thread-safety: calls are independent unless they write to one directory.
#ifndef NIBBLE_CLIENT_LOCAL_DATA_FILES_H_
#define NIBBLE_CLIENT_LOCAL_DATA_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/text_shards.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

struct TokenizeRequest {
  PrepareTextOptions text;  // `progress` is ignored
  // As for LoadTokenizer(); empty: bytes, or the tokenizer that `training` makes.
  std::string tokenizer;
  // A vocabulary of 0 means that no tokenizer is trained.
  SentencePieceTraining training;
  int64_t sample_bytes = int64_t{1} << 26;  // of text to train on
  bool json = false;
};

// Receives one progress line, without its newline.
using Say = std::function<void(std::string_view line)>;

// Makes the shards and returns the text for stdout. The tokenizer's file, if it has one, is copied
// beside the shards (see tokenizer.h).
absl::StatusOr<std::string> RunTokenize(const TokenizeRequest& request, const Say& say);

struct InspectRequest {
  std::string file;
  // For files of other trainers; an unset tokenizer or vocabulary is shown as unknown.
  TokenHints hints;
  int64_t first_document = 0;
  int64_t documents = 0;     // the number of documents shown, from there
  int64_t max_tokens = 256;  // shown of each document
  bool text = false;         // as text instead of numbers
  // The tokenizer for `text`, as for LoadTokenizer(); empty: found by the file's label (see
  // tokenizer.h).
  std::string tokenizer;
  bool json = false;
};

// Returns the text for stdout.
absl::StatusOr<std::string> RunInspect(const InspectRequest& request);

struct VerifyRequest {
  std::vector<std::string> files;
  TokenHints hints;
  bool json = false;
};

struct Verified {
  std::string output;  // for stdout, of all files
  // One for each file that failed, in order; each message names its file.
  std::vector<absl::Status> errors;
};

// Checks everything that the formats allow to check. `warn` receives one line, without its newline,
// for each file whose format allows less than a full check.
Verified RunVerify(const VerifyRequest& request,
                   const std::function<void(std::string_view line)>& warn);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_DATA_FILES_H_
