// A tokenizer from a Hugging Face tokenizer.json (byte-pair encodings: see tokenizer_json.h). It
// gives the tokens of Hugging Face's tokenizers without special tokens around the text. Text is
// UTF-8.
//
// Ownership: owns its tables. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BPE_TOKENIZER_H_
#define NIBBLE_WORKER_TRAINER_DATA_BPE_TOKENIZER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/byte_pairs.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/data/tokenizer_json.h"

namespace nibble {

// "hf:" and 16 hexadecimal digits, the hash of TokenizerJson::canonical.
std::string BpeLabel(std::string_view canonical);

class BpeTokenizer final : public Tokenizer {
 public:
  // Reads a tokenizer.json. Documents end with its own "end_of_document" or the eos_token of the
  // tokenizer_config.json in the same directory. Messages name the path.
  //
  //   InvalidArgument           as ReadTokenizerJson() and EndOfDocumentIn()
  //   FailedPrecondition        the file is too long or not a regular file
  //   NotFound, PermissionDenied, ...  the system's error
  static absl::StatusOr<std::unique_ptr<BpeTokenizer>> Load(const std::string& path);

  explicit BpeTokenizer(TokenizerJson json);

  std::string label() const override { return label_; }
  int32_t vocabulary() const override { return static_cast<int32_t>(json_.pieces.size()); }
  int32_t end_of_document() const override { return json_.end_of_document; }
  std::string_view file() const override { return json_.canonical; }

  // Cuts between a letter or number and the white space after it, or before the spaces after a
  // word; never inside an added token.
  size_t PieceEnd(std::string_view text, size_t at_least) const override;
  absl::Status EncodePiece(std::string_view piece, int64_t offset, Sink sink) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens) const override;

 private:
  using Symbols = std::vector<int32_t>;
  struct Output;  // the tokens of one call and its cache of words

  // The added token of a pass that `text` begins with; null if there is none.
  const TokenizerJson::Added* AddedAt(bool second, std::string_view text) const;
  // Encodes the sections between the added tokens of a pass.
  absl::Status ByAdded(bool second, std::string_view text, bool after_token, bool begins,
                       Output& out) const;
  absl::Status ByWords(std::string_view text, Output& out) const;
  // Marks spaces, then encodes words that no merge spans.
  absl::Status ByMarks(std::string_view text, bool after_token, bool begins, Output& out) const;
  absl::Status Word(std::string_view word, Output& out) const;
  bool MayCut(std::string_view text, size_t at) const;

  TokenizerJson json_;
  std::string label_;
  BytePairs pairs_;
  // By first byte, longest first: for the first pass and for the second.
  std::array<std::vector<const TokenizerJson::Added*>, 256> added_[2];
  absl::flat_hash_map<uint32_t, int32_t>
      characters_;  // single-character tokens, if symbols are characters
  absl::flat_hash_map<std::string, int32_t> words_;  // with whole_words: tokens of words
  bool cuts_ = false;                                // PieceEnd() can cut
  bool words_apart_ = false;                         // no merge spans the beginning of spaces
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BPE_TOKENIZER_H_
