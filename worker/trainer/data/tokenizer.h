// Text to tokens and back.
//
// Ownership: none taken; texts and tokens are borrowed for the length of a call.
// Thread-safety: immutable; const methods may be called from any thread.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

class Tokenizer {
 public:
  // Takes the next tokens of a text, in order and in pieces of any size.
  using Sink = absl::FunctionRef<absl::Status(absl::Span<const int32_t>)>;

  virtual ~Tokenizer() = default;

  // What tells this tokenizer from every other one that gives other tokens for some text; shards
  // carry it. 1 to 32 printable ASCII characters.
  virtual std::string label() const = 0;
  virtual int32_t vocabulary() const = 0;  // tokens are in [0, vocabulary)
  virtual int32_t end_of_document() const = 0;

  // Feeds the text's tokens to the sink, without an end of document, and stops at the sink's first
  // error, which it returns. In pieces, so that a long document need never be whole in memory.
  virtual absl::Status Encode(std::string_view text, Sink sink) const = 0;

  // The text of the tokens; an end of document is no text. InvalidArgument with the position and
  // the token for one outside the vocabulary.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens) const = 0;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_
