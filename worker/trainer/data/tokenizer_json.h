// The tokenizer.json of Hugging Face's tokenizers, read with distrust: byte-pair encodings of
// bytes (GPT-2, Llama 3) and of SentencePiece's pieces with bytes for the rest (Llama 2, Mistral).
// docs/formats/tokenizers.md says which parts are read; any other is an error that names it.
//
// Ownership: results own everything. Thread-safety: pure functions of the text or the file.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_JSON_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_JSON_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/trainer/data/bpe.h"
#include "worker/trainer/data/word_split.h"

namespace nibble {

inline constexpr size_t kMaxTokenizerJsonBytes = size_t{1} << 26;
// What stands for a space in SentencePiece's pieces.
inline constexpr std::string_view kSpaceMark = "\u2581";

// Byte-level vocabularies spell a byte as a character that can be seen: itself where it is one in
// Latin-1, otherwise the next of those from U+0100 on. By byte, in UTF-8.
const std::array<std::string, 256>& ByteSpellings();

struct TokenizerJson {
  // A token that is found in a text before anything else is looked at.
  struct Added {
    std::string text;
    int32_t token = 0;
    bool second = false;  // looked for in what the first ones leave
  };
  // Where a kSpaceMark is put that the text does not have.
  enum class Mark : uint8_t {
    kNone,
    kBefore,       // before every stretch between added tokens
    kUnlessThere,  // as kBefore, where the stretch does not begin with one
    kFirst,        // as kUnlessThere, before the text's first stretch only
  };

  // By token; empty where there is none. Bytes and spaces as they are in texts.
  std::vector<std::string> pieces;
  std::vector<BytePairs::Merge> merges;
  std::vector<Added> added;
  bool bytes = false;                         // symbols are bytes; otherwise characters
  std::array<int32_t, 256> byte_tokens = {};  // of each byte
  WordSplit split;
  bool mark_spaces = false;  // spaces become kSpaceMark
  Mark mark = Mark::kNone;
  bool whole_words = false;  // a word that is a piece is not put together (ignore_merges)
  int32_t end_of_document = 0;
  // What decides the tokens, without the rest of the file: reading it gives all of this again.
  std::string canonical;
};

// The token that ends documents is, in this order, the text's own "end_of_document", as canonical
// has it, or `end_of_document`.
//
//   InvalidArgument  beginning with `name`: no JSON, a part that is not read here or is damaged, or
//                    nothing says what ends a document
absl::StatusOr<TokenizerJson> ReadTokenizerJson(std::string_view name, std::string_view text,
                                                std::string_view end_of_document);

// The "eos_token" of the tokenizer_config.json in a directory; empty where there is neither.
// InvalidArgument, beginning with the path, for a damaged one.
absl::StatusOr<std::string> EndOfDocumentIn(const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_JSON_H_
