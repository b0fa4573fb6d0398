#include "worker/trainer/data/byte_tokenizer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"

namespace nibble {

absl::Status ByteTokenizer::EncodePiece(std::string_view piece, int64_t, Sink sink) const {
  std::array<int32_t, 4096> tokens;
  while (!piece.empty()) {
    const size_t count = std::min(piece.size(), tokens.size());
    for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<unsigned char>(piece[i]);
    absl::Status status = sink(absl::MakeConstSpan(tokens.data(), count));
    if (!status.ok()) return status;
    piece.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ByteTokenizer::Decode(absl::Span<const int32_t> tokens) const {
  std::string text;
  text.reserve(tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= kVocabulary) {
      return absl::InvalidArgumentError(
          absl::StrFormat("token %d at position %d is outside the vocabulary [0, %d)", tokens[i], i,
                          int32_t{kVocabulary}));
    }
    if (tokens[i] != kEndOfDocument) text += static_cast<char>(tokens[i]);
  }
  return text;
}

}  // namespace nibble
