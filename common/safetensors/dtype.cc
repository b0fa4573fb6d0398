#include "common/safetensors/dtype.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {
namespace {

struct Entry {
  FileDType dtype;
  std::string_view name;
  int size;
};

constexpr std::array<Entry, kFileDTypeCount> kEntries = {{
    {FileDType::kBool, "BOOL", 1},
    {FileDType::kU8, "U8", 1},
    {FileDType::kI8, "I8", 1},
    {FileDType::kF8E4M3, "F8_E4M3", 1},
    {FileDType::kF8E5M2, "F8_E5M2", 1},
    {FileDType::kF8E8M0, "F8_E8M0", 1},
    {FileDType::kI16, "I16", 2},
    {FileDType::kU16, "U16", 2},
    {FileDType::kF16, "F16", 2},
    {FileDType::kBF16, "BF16", 2},
    {FileDType::kI32, "I32", 4},
    {FileDType::kU32, "U32", 4},
    {FileDType::kF32, "F32", 4},
    {FileDType::kI64, "I64", 8},
    {FileDType::kU64, "U64", 8},
    {FileDType::kF64, "F64", 8},
}};

// The lookups below index by the enum's value.
constexpr bool InEnumOrder() {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (static_cast<size_t>(kEntries[i].dtype) != i) return false;
  }
  return true;
}
static_assert(InEnumOrder());

}  // namespace

std::string_view FileDTypeName(FileDType dtype) {
  const size_t i = static_cast<size_t>(dtype);
  return i < kEntries.size() ? kEntries[i].name : "?";
}

int FileDTypeSize(FileDType dtype) {
  const size_t i = static_cast<size_t>(dtype);
  return i < kEntries.size() ? kEntries[i].size : 0;
}

std::optional<FileDType> FileDTypeFromName(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  return std::nullopt;
}

}  // namespace nibble
