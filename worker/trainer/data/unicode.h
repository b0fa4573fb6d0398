// UTF-8 validation, and the Unicode general categories that tokenizers split texts by.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_UNICODE_H_
#define NIBBLE_WORKER_TRAINER_DATA_UNICODE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nibble {

// The position of the first byte that does not begin a well-formed UTF-8 character (overlong forms,
// surrogates and code points above U+10FFFF are not well-formed); npos if the text is valid.
size_t FindInvalidUtf8(std::string_view text);

// In the notation of regular expressions: \p{L}, \p{N}, \s, and every other character.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };

CharacterClass ClassOf(uint32_t character);

// The first code point of a well-formed UTF-8 text (see FindInvalidUtf8()) that is not empty;
// stores its length in `bytes`.
uint32_t FirstCharacter(std::string_view text, size_t& bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_UNICODE_H_
