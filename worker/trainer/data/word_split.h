// How byte-level tokenizers cut a text into words before any pieces are joined: the regular
// expressions of GPT-2, Llama 3 and their kin, matched by hand.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_WORD_SPLIT_H_
#define NIBBLE_WORKER_TRAINER_DATA_WORD_SPLIT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace nibble {

struct WordSplit {
  enum class Kind : uint8_t { kNone, kGpt2, kLlama3 };

  Kind kind = Kind::kNone;  // kNone: a text is one word
  size_t digits = 3;        // kLlama3: a number is cut after as many
};

// GPT-2's, which a ByteLevel pre-tokenizer with use_regex implies.
inline constexpr WordSplit kGpt2Split = {WordSplit::Kind::kGpt2};

// The split that a regular expression of tokenizer.json means; none for an expression that is not
// known here.
std::optional<WordSplit> WordSplitOf(std::string_view expression);

// The size in bytes of the first word of a text, which is well-formed UTF-8 and not empty.
size_t FirstWord(const WordSplit& split, std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_WORD_SPLIT_H_
