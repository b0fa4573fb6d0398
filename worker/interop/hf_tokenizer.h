// Tokenizers as files of a Hugging Face model directory.
//
//   SentencePiece   tokenizer.model, the model's own bytes; of a BPE model tokenizer_config.json
//                   names LlamaTokenizer, which reads it; of a unigram model, which LlamaTokenizer
//                   would take for BPE, tokenizer.json has the pieces again, and
//                   tokenizer_config.json names PreTrainedTokenizerFast
//   bytes           tokenizer.json: a byte-level BPE without merges, whose token b is byte b, and
//                   tokenizer_config.json, which names PreTrainedTokenizerFast and says
//                   "nibble_tokenizer": "bytes"
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

// Contents by file name. `directory` is where a SentencePiece model lies, under the name its label
// gives it or as tokenizer.model; it is not looked at for the byte tokenizer.
//
//   FailedPrecondition  the label is of neither kind, no such model is there, or it is used in a
//                       way that those classes do not have: text is changed first, no space before
//                       it, no bytes for what is no piece, pieces of the user's
//   any other           of reading files
absl::StatusOr<std::map<std::string, std::string>> HfTokenizerFiles(const Tokenizer& tokenizer,
                                                                    const std::string& directory);

// Null where the directory has neither tokenizer.model nor a tokenizer_config.json that names the
// byte tokenizer. InvalidArgument, beginning with the path, for files that are damaged.
absl::StatusOr<std::shared_ptr<const Tokenizer>> ReadHfTokenizer(const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_INTEROP_HF_TOKENIZER_H_
