#include "common/crc32c.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

#include "absl/types/span.h"

namespace nibble {
namespace crc32c_internal {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;

// tables[k][b]: the contribution of byte b to the remainder when k more bytes follow it, so that
// eight bytes take eight independent look-ups.
using Tables = std::array<std::array<uint32_t, 256>, 8>;

constexpr Tables MakeTables() {
  Tables tables = {};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t remainder = b;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][b] = remainder;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[k - 1][b];
      tables[k][b] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

uint32_t AddByte(uint32_t remainder, std::byte byte) {
  return (remainder >> 8) ^ kTables[0][(remainder ^ std::to_integer<uint32_t>(byte)) & 0xff];
}

}  // namespace

uint32_t ExtendByTable(uint32_t crc, absl::Span<const std::byte> bytes) {
  uint32_t remainder = ~crc;
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint32_t next = 0;
    for (size_t j = 0; j < 8; ++j) {
      const uint32_t carried = j < 4 ? remainder >> (8 * j) : 0;
      next ^= kTables[7 - j][(carried ^ std::to_integer<uint32_t>(bytes[i + j])) & 0xff];
    }
    remainder = next;
  }
  for (; i < bytes.size(); ++i) remainder = AddByte(remainder, bytes[i]);
  return ~remainder;
}

#if defined(__x86_64__)

bool HasInstruction() { return __builtin_cpu_supports("sse4.2") != 0; }

__attribute__((target("sse4.2"))) uint32_t ExtendByInstruction(uint32_t crc,
                                                               absl::Span<const std::byte> bytes) {
  uint64_t remainder = static_cast<uint32_t>(~crc);
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, sizeof(word));
    remainder = _mm_crc32_u64(remainder, word);
  }
  uint32_t last = static_cast<uint32_t>(remainder);
  for (; i < bytes.size(); ++i) last = _mm_crc32_u8(last, std::to_integer<uint8_t>(bytes[i]));
  return ~last;
}

#else

bool HasInstruction() { return false; }

uint32_t ExtendByInstruction(uint32_t crc, absl::Span<const std::byte> bytes) {
  return ExtendByTable(crc, bytes);
}

#endif

}  // namespace crc32c_internal

uint32_t ExtendCrc32c(uint32_t crc, absl::Span<const std::byte> bytes) {
  static const bool has_instruction = crc32c_internal::HasInstruction();
  return has_instruction ? crc32c_internal::ExtendByInstruction(crc, bytes)
                         : crc32c_internal::ExtendByTable(crc, bytes);
}

}  // namespace nibble
