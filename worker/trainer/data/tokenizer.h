// Text to tokens and back.
//
// Ownership: none taken; texts and tokens are borrowed for the length of a call.
// Thread-safety: immutable; const methods may be called from any thread.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_

#include <cstddef>
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
  // The content of the file that it is read back from (see tokenizer_files.h); empty where it needs
  // none.
  virtual std::string_view file() const = 0;

  // Feeds the text's tokens to the sink, without an end of document, and stops at the sink's first
  // error, which it returns; otherwise as EncodePiece(). Piece by piece, so that a long document's
  // tokens need never be in memory together.
  absl::Status Encode(std::string_view text, Sink sink) const;

  // Where a text may be cut so that its pieces can be encoded apart, by several threads at once:
  // the first such place at or after `at_least`, which is 1 or more, and text.size() where there is
  // none before. `text` begins where the whole does or at a place cut before. The tokens of the
  // pieces, in order, are the tokens of the whole, wherever of these places it is cut.
  virtual size_t PieceEnd(std::string_view text, size_t at_least) const = 0;

  // Feeds the tokens of the piece that begins at byte `offset` of a text.
  //
  //   InvalidArgument  the tokenizer takes no such text; says at which byte of the whole
  //   any other        the sink's
  virtual absl::Status EncodePiece(std::string_view piece, int64_t offset, Sink sink) const = 0;

  // The text of the tokens; an end of document is no text. InvalidArgument with the position and
  // the token for one outside the vocabulary.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens) const = 0;
};

// The 64-bit FNV-1a hash of what decides a tokenizer's tokens, as labels have it: 16 hexadecimal
// digits.
std::string TokenizerHash(std::string_view content);

// Pieces of about this size keep the tokens of a piece small and the cost of a cut smaller.
inline constexpr size_t kEncodePieceBytes = size_t{1} << 16;

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_
