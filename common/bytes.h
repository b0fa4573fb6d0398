// Views of bytes, numbers as little-endian bytes on every machine, and the hash FNV-1a.
//
// Ownership: views borrow. Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_BYTES_H_
#define NIBBLE_COMMON_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/types/span.h"

namespace nibble {

// The bytes of a std::string or a string view.
template <class Text>
absl::Span<const std::byte> AsBytes(const Text& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// `bytes` has room for sizeof(Number) bytes. Negative numbers are stored in two's complement.
template <class Number>
void StoreLittle(char* bytes, Number number) {
  const auto bits = static_cast<std::make_unsigned_t<Number>>(number);
  for (size_t i = 0; i < sizeof(Number); ++i) bytes[i] = static_cast<char>(bits >> (8 * i));
}

template <class Number>
void AppendLittle(std::string& to, Number number) {
  char bytes[sizeof(Number)];
  StoreLittle(bytes, number);
  to.append(bytes, sizeof(Number));
}

// `bytes` has at least sizeof(Number) bytes.
template <class Number>
Number LoadLittle(const char* bytes) {
  std::make_unsigned_t<Number> bits = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) {
    bits |= static_cast<std::make_unsigned_t<Number>>(static_cast<unsigned char>(bytes[i]))
            << (8 * i);
  }
  return static_cast<Number>(bits);
}

// FNV-1a (http://www.isthe.com/chongo/tech/comp/fnv/): the same value in every build, unlike
// std::hash. It does not withstand chosen inputs.
constexpr uint64_t Fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

constexpr uint32_t Fnv1a32(std::string_view text) {
  uint32_t hash = 0x811c9dc5u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return hash;
}

}  // namespace nibble

#endif  // NIBBLE_COMMON_BYTES_H_
