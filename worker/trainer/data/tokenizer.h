// Tokenizers: the interface, the byte tokenizer, and the files that tokenizers are stored in.
//
// Ownership: texts and tokens are borrowed for the length of a call.
// Thread-safety: tokenizers are immutable, const methods may be called from any thread; the free
// functions depend on nothing but the file system.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace nibble {

class Tokenizer {
 public:
  // Receives the tokens of a text, in order and in pieces of any size.
  using Sink = absl::FunctionRef<absl::Status(absl::Span<const int32_t>)>;

  virtual ~Tokenizer() = default;

  // Identifies the tokenizer: two that encode some text differently have different labels. Shards
  // store it. 1 to 32 printable ASCII characters.
  virtual std::string label() const = 0;
  virtual int32_t vocabulary() const = 0;  // tokens are in [0, vocabulary)
  virtual int32_t end_of_document() const = 0;
  // The content of the file that OpenTokenizer() reads it back from; empty if it needs none.
  virtual std::string_view file() const = 0;

  // Feeds the text's tokens to the sink, without an end of document, piece by piece, so that the
  // tokens of a long document are never all in memory. Stops at the sink's first error and returns
  // it; other errors as EncodePiece().
  absl::Status Encode(std::string_view text, Sink sink) const;
  // All tokens of a text that is not long, otherwise as above.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text) const;

  // The first position at or after `at_least` (1 or more) where the text may be cut into pieces
  // that are encoded independently, for example by several threads; text.size() if there is none.
  // `text` begins at the start of the whole text or at an earlier cut. The tokens of the pieces, in
  // order, are the tokens of the whole text, whichever cuts are used.
  virtual size_t PieceEnd(std::string_view text, size_t at_least) const = 0;

  // Feeds the tokens of the piece that begins at byte `offset` of a text.
  //
  //   InvalidArgument  the tokenizer cannot encode the text; names the byte of the whole text
  //   any other        the sink's error
  virtual absl::Status EncodePiece(std::string_view piece, int64_t offset, Sink sink) const = 0;

  // The text of the tokens; an end of document adds no text. InvalidArgument with the position and
  // the value of a token outside the vocabulary.
  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens) const = 0;

 protected:
  // The errors of Decode(), and of EncodePiece() where text is UTF-8.
  absl::Status CheckTokens(absl::Span<const int32_t> tokens) const;
  static absl::Status CheckUtf8(std::string_view piece, int64_t offset);
};

// The hash in a label: 64-bit FNV-1a of everything that determines the tokens, as 16 hexadecimal
// digits.
std::string TokenizerHash(std::string_view content);

// A good size of pieces: the tokens of one stay small, and so does the share of time spent on cuts.
inline constexpr size_t kEncodePieceBytes = size_t{1} << 16;

// The tokenizer without training: byte b is token b, the end of a document is 256. It encodes any
// bytes, UTF-8 or not, and decodes them unchanged.
class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEndOfDocument = 256;
  static constexpr int32_t kVocabulary = 257;

  std::string label() const override { return "bytes"; }
  int32_t vocabulary() const override { return kVocabulary; }
  int32_t end_of_document() const override { return kEndOfDocument; }
  std::string_view file() const override { return ""; }

  // A cut may be anywhere.
  size_t PieceEnd(std::string_view text, size_t at_least) const override {
    return std::min(text.size(), at_least);
  }
  absl::Status EncodePiece(std::string_view piece, int64_t offset, Sink sink) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens) const override;
};

// The tokenizer that a user names: "bytes", or the path of a SentencePiece .model file or a Hugging
// Face tokenizer.json. The kind of the file is detected from its content.
//
//   any error  as SentencePieceTokenizer::Load() or BpeTokenizer::Load()
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& named);

// The name of a tokenizer's file in the directory of its shards: "sp-....model" for the label
// "sp:...", "hf-....json" for "hf:..."; empty for any other label.
std::string TokenizerFileName(std::string_view label);

// Writes a tokenizer's file to the directory under TokenizerFileName() and returns the path; empty
// if the tokenizer needs no file. Creates the directory if its parent exists. A file with the same
// content may exist.
//
//   DataLoss   a file of that name exists with other content
//   any other  reading or writing files failed
absl::StatusOr<std::string> SaveTokenizer(const std::string& directory, const Tokenizer& tokenizer);

// The tokenizer with this label: the byte tokenizer for "bytes", otherwise read from the label's
// file in the directory.
//
//   InvalidArgument  the label is of no known kind, or the file's tokenizer has another label
//   NotFound, ...    as LoadTokenizer()
absl::StatusOr<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& label,
                                                         const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_H_
