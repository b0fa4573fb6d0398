// What the token files of other trainers do not say of themselves, and their reader therefore says.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKEN_HINTS_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKEN_HINTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace nibble {

// A token that stands in every document.
struct DocumentMark {
  enum class Place : uint8_t { kEnds, kBegins };

  int32_t token = 0;
  Place place = Place::kEnds;  // it is the document's last token, or its first
};

struct TokenHints {
  // Tokenizer::label() of the tokenizer that made the tokens, and its vocabulary.
  std::string tokenizer;
  int64_t vocabulary = 0;
  // Bytes per token of a file without a header: 2 or 4. 0: the file has a header that says.
  int token_width = 0;
  // Of files without an index of documents. None: the file is one document.
  std::optional<DocumentMark> document_mark;
};

// Of a file of other trainers. InvalidArgument, naming the hint, its value and its bound, unless
// there is a label of 1 to 32 printable ASCII characters, a vocabulary in [1, 2^31], a width of 0,
// 2 or 4 and a mark, if any, in the vocabulary.
absl::Status Validate(const TokenHints& hints);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKEN_HINTS_H_
