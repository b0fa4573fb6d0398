// Tokenizers as files of a Hugging Face model directory. tokenizer.json stores the whole tokenizer,
// and tokenizer_config.json names PreTrainedTokenizerFast, which needs only the tokenizers package:
//
//   SentencePiece   the pieces, with BPE's merges or unigram's scores; tokenizer.model beside it
//                   has the model's own bytes
//   tokenizer.json  as it was read, without the post-processor that adds special tokens
//   bytes           a byte-level BPE without merges, whose token b is byte b; tokenizer_config.json
//                   says "nibble_tokenizer": "bytes"
//
// Ownership: results own everything. Thread-safety: pure functions of the file system.
#ifndef NIBBLE_WORKER_INTEROP_HF_TOKENIZER_H_
#define NIBBLE_WORKER_INTEROP_HF_TOKENIZER_H_

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

// Contents by file name.
//
//   FailedPrecondition  a SentencePiece model that tokenizer.json cannot represent: it normalises
//                       the text, has no byte fallback, has user-defined pieces, or two pieces of
//                       equal score
absl::StatusOr<std::map<std::string, std::string>> HfTokenizerFiles(const Tokenizer& tokenizer);

struct HfTokenizer {
  // Null if the directory has none, or an unsupported one.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string notice;  // why a tokenizer.json is unsupported
};

// Reads tokenizer.model, the byte tokenizer if tokenizer_config.json names it, or tokenizer.json.
// InvalidArgument, beginning with the path, for a damaged tokenizer.model or tokenizer_config.json.
absl::StatusOr<HfTokenizer> ReadHfTokenizer(const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_TOKENIZER_H_
