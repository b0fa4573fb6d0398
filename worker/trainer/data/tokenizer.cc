#include "worker/trainer/data/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace nibble {

std::string TokenizerHash(std::string_view content) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : content) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return absl::StrFormat("%016x", hash);
}

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
