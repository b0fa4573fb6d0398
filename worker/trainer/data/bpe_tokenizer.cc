#include "worker/trainer/data/bpe_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/files/files.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "worker/trainer/data/byte_pairs.h"
#include "worker/trainer/data/unicode.h"

namespace nibble {
namespace {

constexpr size_t kSinkTokens = 4096;
// Positions in a word are 32-bit.
constexpr size_t kMaxWordBytes = size_t{1} << 30;
// Larger words rarely repeat, so they are not cached.
constexpr size_t kMaxKnownBytes = 64;
constexpr size_t kMaxKnownWords = size_t{1} << 16;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Whether the text ends with a well-formed letter or number.
bool EndsInWord(std::string_view text) {
  size_t at = text.size();
  while (at > 0 && text.size() - at < 4) {
    --at;
    const auto byte = static_cast<uint8_t>(text[at]);
    if ((byte & 0xc0) == 0x80) continue;
    const size_t bytes = byte < 0x80 ? 1 : byte < 0xc0 ? 0 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    if (bytes != text.size() - at) return false;
    size_t size = 0;
    const CharacterClass found = ClassOf(FirstCharacter(text.substr(at), size));
    return found == CharacterClass::kLetter || found == CharacterClass::kNumber;
  }
  return false;
}

}  // namespace

struct BpeTokenizer::Output {
  explicit Output(Sink sink) : sink(sink) {}

  absl::Status Add(absl::Span<const int32_t> more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    return tokens.size() < kSinkTokens ? absl::OkStatus() : Flush();
  }
  absl::Status Flush() {
    if (tokens.empty()) return absl::OkStatus();
    absl::Status status = sink(tokens);
    tokens.clear();
    return status;
  }

  Sink sink;
  Symbols tokens;
  Symbols symbols;  // of the word being joined
  absl::flat_hash_map<std::string, Symbols> known;
};

std::string BpeLabel(std::string_view canonical) {
  return absl::StrCat("hf:", TokenizerHash(canonical));
}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Load(const std::string& path) {
  NIBBLE_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path, kMaxTokenizerJsonBytes));
  NIBBLE_ASSIGN_OR_RETURN(const std::string end,
                          EndOfDocumentIn(std::filesystem::path(path).parent_path().string()));
  NIBBLE_ASSIGN_OR_RETURN(TokenizerJson json, ReadTokenizerJson(path, text, end));
  return std::make_unique<BpeTokenizer>(std::move(json));
}

BpeTokenizer::BpeTokenizer(TokenizerJson json)
    : json_(std::move(json)), label_(BpeLabel(json_.canonical)), pairs_(json_.merges) {
  bool spaces_inside = false;
  for (const TokenizerJson::Added& added : json_.added) {
    added_[added.second ? 1 : 0][static_cast<uint8_t>(added.text[0])].push_back(&added);
    spaces_inside |= std::any_of(added.text.begin(), added.text.end(), IsSpace) ||
                     added.text.find(kSpaceMark) != std::string::npos;
  }
  for (auto& pass : added_) {
    for (auto& of_byte : pass) {
      std::stable_sort(of_byte.begin(), of_byte.end(),
                       [](auto* a, auto* b) { return a->text.size() > b->text.size(); });
    }
  }
  std::vector<bool> added(json_.pieces.size());
  for (const TokenizerJson::Added& token : json_.added) added[token.token] = true;
  for (size_t token = 0; token < json_.pieces.size(); ++token) {
    const std::string& piece = json_.pieces[token];
    if (piece.empty()) continue;
    if (json_.whole_words && !added[token]) words_.emplace(piece, static_cast<int32_t>(token));
    if (json_.bytes || FindInvalidUtf8(piece) != std::string_view::npos) continue;
    // The spelling in texts, in which spaces are marked before look-up.
    const std::string_view spelling = json_.mark_spaces && piece == " " ? kSpaceMark : piece;
    size_t size = 0;
    const uint32_t character = FirstCharacter(spelling, size);
    const bool byte =
        json_.byte_tokens[static_cast<uint8_t>(piece[0])] == static_cast<int32_t>(token);
    if (size == spelling.size() && !byte)
      characters_.emplace(character, static_cast<int32_t>(token));
  }
  words_apart_ = json_.mark_spaces;
  for (const BytePairs::Merge& merge : json_.merges) {
    if (json_.pieces[merge.right].starts_with(' ') && !json_.pieces[merge.left].ends_with(' ')) {
      words_apart_ = false;
    }
  }
  const bool has_words = json_.bytes ? json_.split.kind != WordSplit::Kind::kNone : words_apart_;
  cuts_ = has_words && !spaces_inside;
}

bool BpeTokenizer::MayCut(std::string_view text, size_t at) const {
  if (!(json_.bytes ? IsSpace(text[at]) : text[at] == ' ')) return false;
  const std::string_view before = text.substr(0, at);
  // The text after an added token begins another section.
  return EndsInWord(before) && std::none_of(json_.added.begin(), json_.added.end(),
                                            [&](const TokenizerJson::Added& added) {
                                              return before.ends_with(added.text);
                                            });
}

size_t BpeTokenizer::PieceEnd(std::string_view text, size_t at_least) const {
  if (!cuts_) return text.size();
  for (size_t at = at_least; at < text.size(); ++at) {
    if (MayCut(text, at)) return at;
  }
  return text.size();
}

absl::Status BpeTokenizer::EncodePiece(std::string_view piece, int64_t offset, Sink sink) const {
  NIBBLE_RETURN_IF_ERROR(CheckUtf8(piece, offset));
  Output out(sink);
  NIBBLE_RETURN_IF_ERROR(ByAdded(false, piece, false, offset == 0, out));
  return out.Flush();
}

const TokenizerJson::Added* BpeTokenizer::AddedAt(bool second, std::string_view text) const {
  for (const auto* added : added_[second ? 1 : 0][static_cast<uint8_t>(text[0])]) {
    if (text.starts_with(added->text)) return added;
  }
  return nullptr;
}

absl::Status BpeTokenizer::ByAdded(bool second, std::string_view text, bool after_token,
                                   bool begins, Output& out) const {
  const auto stretch = [&](std::string_view part) -> absl::Status {
    if (part.empty()) return absl::OkStatus();
    const bool first = begins && part.data() == text.data();
    if (!second) return ByAdded(true, part, after_token, first, out);
    return json_.bytes ? ByWords(part, out) : ByMarks(part, after_token, first, out);
  };
  size_t from = 0;
  for (size_t at = 0; at < text.size();) {
    const TokenizerJson::Added* added = AddedAt(second, text.substr(at));
    if (added == nullptr) {
      ++at;
      continue;
    }
    NIBBLE_RETURN_IF_ERROR(stretch(text.substr(from, at - from)));
    NIBBLE_RETURN_IF_ERROR(out.Add({added->token}));
    from = at += added->text.size();
    after_token = true;
  }
  return stretch(text.substr(from));
}

absl::Status BpeTokenizer::ByWords(std::string_view text, Output& out) const {
  while (!text.empty()) {
    const size_t size = FirstWord(json_.split, text);
    NIBBLE_RETURN_IF_ERROR(Word(text.substr(0, size), out));
    text.remove_prefix(size);
  }
  return absl::OkStatus();
}

absl::Status BpeTokenizer::ByMarks(std::string_view text, bool after_token, bool begins,
                                   Output& out) const {
  const bool has_mark = text.starts_with(kSpaceMark) || text.starts_with(' ');
  bool mark = false;
  switch (json_.mark) {
    case TokenizerJson::Mark::kNone:
      break;
    case TokenizerJson::Mark::kBefore:
      mark = begins || after_token;
      break;
    case TokenizerJson::Mark::kUnlessThere:
      mark = (begins || after_token) && !has_mark;
      break;
    case TokenizerJson::Mark::kFirst:
      mark = begins && !has_mark;
      break;
  }
  std::string word(mark ? kSpaceMark : std::string_view());
  bool spaces = mark;  // `word` ends with a mark
  for (size_t at = 0, size = 0; at < text.size(); at += size) {
    FirstCharacter(text.substr(at), size);
    const std::string_view character = text.substr(at, size);
    const bool space = json_.mark_spaces && (character == " " || character == kSpaceMark);
    if (words_apart_ && space && !spaces && !word.empty()) {
      NIBBLE_RETURN_IF_ERROR(Word(word, out));
      word.clear();
    }
    word += space ? kSpaceMark : character;
    spaces = space;
  }
  return word.empty() ? absl::OkStatus() : Word(word, out);
}

absl::Status BpeTokenizer::Word(std::string_view word, Output& out) const {
  if (word.size() > kMaxWordBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a word has %d bytes, more than %d", word.size(), size_t{kMaxWordBytes}));
  }
  const absl::string_view key(word.data(), word.size());  // the key type of Abseil's tables
  if (json_.whole_words) {
    if (const auto found = words_.find(key); found != words_.end()) return out.Add({found->second});
  }
  if (const auto known = out.known.find(key); known != out.known.end()) {
    return out.Add(known->second);
  }
  Symbols& symbols = out.symbols;
  symbols.clear();
  for (size_t at = 0, size = 0; at < word.size(); at += size) {
    size = 1;
    if (!json_.bytes) {
      const uint32_t character = FirstCharacter(word.substr(at), size);
      if (const auto found = characters_.find(character); found != characters_.end()) {
        symbols.push_back(found->second);
        continue;
      }
    }
    for (const char byte : word.substr(at, size)) {
      symbols.push_back(json_.byte_tokens[static_cast<uint8_t>(byte)]);
    }
  }
  pairs_.Join(symbols);
  if (word.size() <= kMaxKnownBytes && out.known.size() < kMaxKnownWords) {
    out.known.emplace(word, symbols);
  }
  return out.Add(symbols);
}

absl::StatusOr<std::string> BpeTokenizer::Decode(absl::Span<const int32_t> tokens) const {
  NIBBLE_RETURN_IF_ERROR(CheckTokens(tokens));
  std::string text;
  size_t document = 0;  // the beginning of the current one
  const auto end_document = [&] {
    if (json_.mark != TokenizerJson::Mark::kNone && document < text.size() &&
        text[document] == ' ') {
      text.erase(document, 1);
    }
    document = text.size();
  };
  for (const int32_t token : tokens) {
    if (token == json_.end_of_document) {
      end_document();
    } else {
      text += json_.pieces[token];
    }
  }
  end_document();
  return text;
}

}  // namespace nibble
