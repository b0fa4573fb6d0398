#include "worker/trainer/data/token_array.h"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"

namespace nibble {
namespace {

// Integers are copied as they lie in memory.
static_assert(std::endian::native == std::endian::little);

template <class T>
absl::Status Copy(const std::string& name, const std::byte* data, int64_t vocabulary, int64_t first,
                  int64_t count, int32_t* out) {
  const auto load = [&](int64_t i) {
    T token;
    std::memcpy(&token, data + (first + i) * sizeof(T), sizeof(T));
    return token;
  };
  const auto outside = [&](T token) {  // a negative token is a large unsigned one
    return static_cast<uint64_t>(static_cast<int64_t>(token)) >= static_cast<uint64_t>(vocabulary);
  };
  bool bad = false;
  for (int64_t i = 0; i < count; ++i) {
    const T token = load(i);
    bad |= outside(token);
    out[i] = static_cast<int32_t>(token);
  }
  if (!bad) return absl::OkStatus();
  int64_t i = 0;
  while (!outside(load(i))) ++i;
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: token %d at position %d is outside the vocabulary [0, %d)", name,
                      static_cast<int64_t>(load(i)), first + i, vocabulary));
}

}  // namespace

int TokenTypeBytes(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
    case TokenType::kUint32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  return 1;
}

const char* TokenTypeName(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kUint16:
      return "uint16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kUint32:
      return "uint32";
    case TokenType::kInt64:
      return "int64";
  }
  return "?";
}

absl::Status TokenArray::Read(const std::string& name, int64_t vocabulary, int64_t first,
                              int64_t count, int32_t* out) const {
  if (first < 0 || count < 0 || first > size_ || count > size_ - first) {
    return absl::OutOfRangeError(absl::StrFormat("%s: %d tokens from %d on are not inside [0, %d)",
                                                 name, count, first, size_));
  }
  switch (type_) {
    case TokenType::kUint8:
      return Copy<uint8_t>(name, data_, vocabulary, first, count, out);
    case TokenType::kInt8:
      return Copy<int8_t>(name, data_, vocabulary, first, count, out);
    case TokenType::kInt16:
      return Copy<int16_t>(name, data_, vocabulary, first, count, out);
    case TokenType::kUint16:
      return Copy<uint16_t>(name, data_, vocabulary, first, count, out);
    case TokenType::kInt32:
      return Copy<int32_t>(name, data_, vocabulary, first, count, out);
    case TokenType::kUint32:
      return Copy<uint32_t>(name, data_, vocabulary, first, count, out);
    case TokenType::kInt64:
      return Copy<int64_t>(name, data_, vocabulary, first, count, out);
  }
  return absl::InternalError(absl::StrFormat("%s: no such type of token", name));
}

}  // namespace nibble
