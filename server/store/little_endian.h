// Numbers as little-endian bytes.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_STORE_LITTLE_ENDIAN_H_
#define NIBBLE_SERVER_STORE_LITTLE_ENDIAN_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace nibble {

template <class Number>
void AppendLittle(std::string& to, Number number) {
  for (size_t i = 0; i < sizeof(Number); ++i) to.push_back(static_cast<char>(number >> (8 * i)));
}

// `from` has at least as many bytes as the number.
template <class Number>
Number LoadLittle(absl::string_view from) {
  Number number = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) {
    number |= static_cast<Number>(static_cast<unsigned char>(from[i])) << (8 * i);
  }
  return number;
}

}  // namespace nibble

#endif  // NIBBLE_SERVER_STORE_LITTLE_ENDIAN_H_
