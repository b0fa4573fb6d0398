// Element types of the safetensors format: their names on disk and their sizes.
//
// Ownership: plain values; names are string literals.
// Thread-safety: every function is pure and may be called from any thread.

#ifndef NIBBLE_COMMON_SAFETENSORS_DTYPE_H_
#define NIBBLE_COMMON_SAFETENSORS_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

// Only types whose elements fill whole bytes: a tensor's size is then always elements * size.
// Files contain the names; the values are private to the process.
enum class FileDType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
};

inline constexpr int kFileDTypeCount = 16;

// The name as the file spells it, e.g. "F8_E4M3". A value outside the enum gives "?".
std::string_view FileDTypeName(FileDType dtype);

// Bytes of one element, which is also its natural alignment: 1, 2, 4 or 8. A value outside the
// enum gives 0.
int FileDTypeSize(FileDType dtype);

// The type of that name, spelled exactly (upper case); nullopt for any other string.
std::optional<FileDType> FileDTypeFromName(std::string_view name);

}  // namespace nibble

#endif  // NIBBLE_COMMON_SAFETENSORS_DTYPE_H_
