// The two steps of byte-pair encoding: pre-tokenization, which splits a text into words by the
// regular expressions of GPT-2, Llama 3 and similar models (matched by hand), and merging, which
// joins the symbols of a word. Both do exactly what Hugging Face's tokenizers do.
//
// Ownership: BytePairs owns its merges. Thread-safety: immutable values and pure functions.
#ifndef NIBBLE_WORKER_TRAINER_DATA_BYTE_PAIRS_H_
#define NIBBLE_WORKER_TRAINER_DATA_BYTE_PAIRS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace nibble {

struct WordSplit {
  enum class Kind : uint8_t { kNone, kGpt2, kLlama3 };

  Kind kind = Kind::kNone;  // kNone: a text is one word
  size_t digits = 3;        // kLlama3: the most digits in one word
};

// The split of GPT-2, which a ByteLevel pre-tokenizer with use_regex implies.
inline constexpr WordSplit kGpt2Split = {WordSplit::Kind::kGpt2};

// The split that a regular expression of tokenizer.json describes; nullopt for an expression that
// is not supported.
std::optional<WordSplit> WordSplitOf(std::string_view expression);

// The size in bytes of the first word of a text, which is well-formed UTF-8 and not empty.
size_t FirstWord(const WordSplit& split, std::string_view text);

// A ranked list of merges.
class BytePairs {
 public:
  struct Merge {
    int32_t left, right;
    int32_t joined;
  };

  BytePairs() = default;
  // In order of rank. If two merges have the same sides, the later one counts.
  explicit BytePairs(const std::vector<Merge>& merges);

  // Applies merges until none applies: always the one of lowest rank, the leftmost first.
  void Join(std::vector<int32_t>& symbols) const;

 private:
  struct Joined {
    int32_t rank = 0;
    int32_t symbol = 0;
  };
  const Joined* Find(int32_t left, int32_t right) const;

  absl::flat_hash_map<uint64_t, Joined> merges_;  // key: both sides
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_BYTE_PAIRS_H_
