// What is UTF-8 and what is not.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_UTF8_H_
#define NIBBLE_WORKER_TRAINER_DATA_UTF8_H_

#include <cstddef>
#include <string_view>

namespace nibble {

// Where the first sequence of bytes begins that is no character of well-formed UTF-8 (overlong
// forms, surrogates and numbers above U+10FFFF are none); npos where there is no such.
size_t FindInvalidUtf8(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_UTF8_H_
