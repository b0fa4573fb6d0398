// Tokenizers as files of a Hugging Face model directory. tokenizer.json has the whole tokenizer and
// tokenizer_config.json names PreTrainedTokenizerFast, which reads it with no package but tokenizers:
//
//   SentencePiece   the pieces, with BPE's merges or unigram's scores; tokenizer.model beside it has
//                   the model's own bytes
//   tokenizer.json  as it was read, but without what puts special tokens around a text
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
//   FailedPrecondition  a SentencePiece model that is used in a way that tokenizer.json does not
//                       have: text is changed first, no bytes for what is no piece, pieces of the
//                       user's, two of equal score
absl::StatusOr<std::map<std::string, std::string>> HfTokenizerFiles(const Tokenizer& tokenizer);

struct HfTokenizer {
  // Null where the directory has none, or one that is not read here.
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string notice;  // why a tokenizer.json is not read
};

// tokenizer.model, the byte tokenizer where tokenizer_config.json names it, or tokenizer.json.
// InvalidArgument, beginning with the path, for a damaged tokenizer.model or tokenizer_config.json.
absl::StatusOr<HfTokenizer> ReadHfTokenizer(const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_TOKENIZER_H_
