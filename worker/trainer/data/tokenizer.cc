#include "worker/trainer/data/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace nibble {

absl::Status Tokenizer::Encode(std::string_view text, Sink sink) const {
  for (size_t begin = 0; begin < text.size();) {
    const size_t size = PieceEnd(text.substr(begin), kEncodePieceBytes);
    absl::Status status = EncodePiece(text.substr(begin, size), static_cast<int64_t>(begin), sink);
    if (!status.ok()) return status;
    begin += size;
  }
  return absl::OkStatus();
}

}  // namespace nibble
