// The tokenizer that needs no training: byte b is token b, the end of a document is 256. Any bytes
// are a text, UTF-8 or not, and decode to themselves.
//
// Ownership: none taken. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BYTE_TOKENIZER_H_
#define NIBBLE_WORKER_TRAINER_DATA_BYTE_TOKENIZER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {

class ByteTokenizer final : public Tokenizer {
 public:
  static constexpr int32_t kEndOfDocument = 256;
  static constexpr int32_t kVocabulary = 257;

  std::string label() const override { return "bytes"; }
  int32_t vocabulary() const override { return kVocabulary; }
  int32_t end_of_document() const override { return kEndOfDocument; }
  std::string_view file() const override { return ""; }

  // Any place will do.
  size_t PieceEnd(std::string_view text, size_t at_least) const override {
    return std::min(text.size(), at_least);
  }
  absl::Status EncodePiece(std::string_view piece, int64_t offset, Sink sink) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> tokens) const override;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BYTE_TOKENIZER_H_
