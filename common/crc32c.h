// CRC-32C (Castagnoli: reflected polynomial 0x82f63b78, initial and final inversion), the checksum
// of iSCSI and of most storage formats: detects every burst of up to 32 bits.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_CRC32C_H_
#define NIBBLE_COMMON_CRC32C_H_

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/bytes.h"

namespace nibble {

// The checksum of some bytes followed by `bytes`, given `crc`, the checksum of the former; the
// checksum of no bytes is 0.
uint32_t ExtendCrc32c(uint32_t crc, absl::Span<const std::byte> bytes);
inline uint32_t ExtendCrc32c(uint32_t crc, absl::string_view text) {
  return ExtendCrc32c(crc, AsBytes(text));
}

inline uint32_t Crc32c(absl::Span<const std::byte> bytes) { return ExtendCrc32c(0, bytes); }
inline uint32_t Crc32c(absl::string_view text) { return ExtendCrc32c(0, text); }

namespace crc32c_internal {

// The two implementations that ExtendCrc32c chooses from; they agree on every input.
uint32_t ExtendByTable(uint32_t crc, absl::Span<const std::byte> bytes);
// Call it only if HasInstruction(): the processor has SSE 4.2.
uint32_t ExtendByInstruction(uint32_t crc, absl::Span<const std::byte> bytes);
bool HasInstruction();

}  // namespace crc32c_internal
}  // namespace nibble

#endif  // NIBBLE_COMMON_CRC32C_H_
