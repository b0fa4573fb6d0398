#include "worker/trainer/data/utf8.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace nibble {
namespace {

// Bytes of the character that `rest`, which is not empty, begins with; 0 when it is none. The
// bounds of a second byte are those of table 3-7 of the Unicode Standard.
size_t CharacterBytes(std::string_view rest) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(rest[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t bytes = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  if (bytes == 0 || rest.size() < bytes) return 0;
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  return bytes;
}

}  // namespace

size_t FindInvalidUtf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  for (size_t i = 0; i < text.size();) {
    uint64_t eight;
    if (text.size() - i >= sizeof(eight)) {
      std::memcpy(&eight, text.data() + i, sizeof(eight));
      if ((eight & kHighBits) == 0) {
        i += sizeof(eight);
        continue;
      }
    }
    const size_t bytes = CharacterBytes(text.substr(i));
    if (bytes == 0) return i;
    i += bytes;
  }
  return std::string_view::npos;
}

}  // namespace nibble
