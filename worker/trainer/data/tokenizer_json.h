// Parser for Hugging Face's tokenizer.json, which is untrusted: byte-level byte-pair encodings
// (GPT-2, Llama 3) and SentencePiece-like ones with byte fallback (Llama 2, Mistral).
// docs/formats/tokenizers.md lists the supported parts; any other is an error that names it.
//
// Ownership: results own their data. Thread-safety: the functions depend on nothing but their
// arguments and the file system.
#ifndef NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_JSON_H_
#define NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_JSON_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/trainer/data/byte_pairs.h"

namespace nibble {

inline constexpr size_t kMaxTokenizerJsonBytes = size_t{1} << 26;
// Represents a space in SentencePiece pieces.
inline constexpr std::string_view kSpaceMark = "\u2581";

// How byte-level vocabularies spell each byte, in UTF-8: as itself if it is a printable character
// of Latin-1, otherwise as the next unused character from U+0100.
const std::array<std::string, 256>& ByteSpellings();

struct TokenizerJson {
  // A token that is matched in a text before pre-tokenization.
  struct Added {
    std::string text;
    int32_t token = 0;
    bool second = false;  // matched in a second pass, in the text between those of the first
  };
  // Where a kSpaceMark is inserted.
  enum class Mark : uint8_t {
    kNone,
    kBefore,       // before every section between added tokens
    kUnlessThere,  // as kBefore, if the section does not begin with one
    kFirst,        // as kUnlessThere, but only before the first section of the text
  };

  // By token; empty for an unused one. With bytes and spaces unescaped, as in texts.
  std::vector<std::string> pieces;
  std::vector<BytePairs::Merge> merges;
  std::vector<Added> added;
  bool bytes = false;                         // symbols are bytes; otherwise characters
  std::array<int32_t, 256> byte_tokens = {};  // of each byte
  WordSplit split;
  bool mark_spaces = false;  // spaces become kSpaceMark
  Mark mark = Mark::kNone;
  bool whole_words = false;  // a word that is a piece needs no merges (ignore_merges)
  int32_t end_of_document = 0;
  // A tokenizer.json with only the parts that determine the tokens; parsing it gives the same
  // result.
  std::string canonical;
};

// Parses `text`. The token that ends documents is the file's own "end_of_document" (which canonical
// has) or, if it has none, `end_of_document`.
//
//   InvalidArgument  beginning with `name`: not JSON, an unsupported or malformed part, or no token
//                    that ends documents
absl::StatusOr<TokenizerJson> ReadTokenizerJson(std::string_view name, std::string_view text,
                                                std::string_view end_of_document);

// The "eos_token" of the tokenizer_config.json in a directory; empty if there is none.
// InvalidArgument, beginning with the path, if the file is malformed.
absl::StatusOr<std::string> EndOfDocumentIn(const std::string& directory);

}  // namespace nibble

#endif  // NIBBLE_WORKER_TRAINER_DATA_TOKENIZER_JSON_H_
