// Integers of some width in a file's bytes, read as tokens. Nothing about them is trusted.
//
// Ownership: borrows the bytes. Thread-safety: immutable.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKEN_ARRAY_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKEN_ARRAY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace nibble {

enum class TokenType : uint8_t { kUint8, kInt8, kInt16, kUint16, kInt32, kUint32, kInt64 };

int TokenTypeBytes(TokenType type);
const char* TokenTypeName(TokenType type);

class TokenArray {
 public:
  TokenArray() = default;
  // `bytes` is a multiple of the type's and need not be aligned; little-endian.
  TokenArray(TokenType type, absl::Span<const std::byte> bytes)
      : type_(type),
        data_(bytes.data()),
        size_(static_cast<int64_t>(bytes.size()) / TokenTypeBytes(type)) {}

  TokenType type() const { return type_; }
  int64_t size() const { return size_; }

  // As TokenSource::Read(): OutOfRange, or InvalidArgument with the position and the value of the
  // first token of the range that is not in [0, vocabulary). Messages begin with `name`.
  absl::Status Read(const std::string& name, int64_t vocabulary, int64_t first, int64_t count,
                    int32_t* out) const;

 private:
  TokenType type_ = TokenType::kUint16;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;  // tokens
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKEN_ARRAY_H_
