// The general categories of Unicode that tokenizers split texts by.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_UNICODE_CLASS_H_
#define NIBBLE_WORKER_TRAINER_DATA_UNICODE_CLASS_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace nibble {

// As regular expressions write them: \p{L}, \p{N}, \s, and every other character.
enum class CharacterClass : uint8_t { kLetter, kNumber, kSpace, kOther };

CharacterClass ClassOf(uint32_t character);

// The first character of a UTF-8 text that is not empty, and how many bytes it has. The text is
// well-formed: see FindInvalidUtf8().
uint32_t FirstCharacter(std::string_view text, size_t& bytes);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_UNICODE_CLASS_H_
