// The work of `nibble data`: making token shards from text, describing and checking token files of
// any format that token_source.h reads.
//
// Ownership: values. Thread-safety: calls are independent unless they write to one directory.
#ifndef NIBBLE_CLIENT_LOCAL_DATA_FILES_H_
#define NIBBLE_CLIENT_LOCAL_DATA_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/shell/output.h"
#include "worker/corpus/text_shards.h"
#include "worker/trainer/data/sentencepiece_training.h"
#include "worker/trainer/data/token_source.h"

namespace nibble {

struct TokenizeRequest {
  PrepareTextOptions text;  // `progress` is ignored
  // As for LoadTokenizer(); empty: bytes, or the tokenizer that `training` makes.
  std::string tokenizer;
  // A vocabulary of 0 means that no tokenizer is trained.
  SentencePieceTraining training;
  int64_t sample_bytes = int64_t{1} << 26;  // of text to train on
};

// Receives one progress line, without its newline.
using Say = std::function<void(std::string_view line)>;

// Makes the shards. The tokenizer's file, if it has one, is copied beside the shards (see
// tokenizer.h).
absl::StatusOr<Reply> RunTokenize(const TokenizeRequest& request, const Say& say);

struct InspectRequest {
  std::string file;
  // Properties that files of other trainers do not state; an unset one is shown as unknown.
  TokenHints hints;
  int64_t first_document = 0;
  int64_t documents = 0;     // number of documents to show, from first_document
  int64_t max_tokens = 256;  // to show of each document
  bool text = false;         // show text instead of numbers
  // The tokenizer for `text`, as for LoadTokenizer(); empty: found by the file's label (see
  // tokenizer.h).
  std::string tokenizer;
};

absl::StatusOr<Reply> RunInspect(const InspectRequest& request);

struct VerifyRequest {
  std::vector<std::string> files;
  TokenHints hints;
};

// Checks everything that the formats allow to check. The notes have one line for each file that is
// not fully checked or that failed; the exit code is that of the first failure.
Reply RunVerify(const VerifyRequest& request);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_DATA_FILES_H_
