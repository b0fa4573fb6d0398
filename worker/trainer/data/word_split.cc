#include "worker/trainer/data/word_split.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "worker/trainer/data/unicode_class.h"

namespace nibble {
namespace {

constexpr struct {
  std::string_view expression;
  WordSplit split;
} kKnown[] = {
    {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", kGpt2Split},
    // Llama 3
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
     R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
     {WordSplit::Kind::kLlama3, 3}},
    // Qwen 2
    {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
     R"(\s*[\r\n]+|\s+(?!\S)|\s+)",
     {WordSplit::Kind::kLlama3, 1}},
};

bool IsFeed(char c) { return c == '\r' || c == '\n'; }

// The end of the characters of a class from `begin` on, at most `most` of them.
size_t EndOf(CharacterClass wanted, std::string_view text, size_t begin,
             size_t most = std::string_view::npos) {
  size_t at = begin;
  for (size_t bytes = 0; at < text.size() && most > 0; at += bytes, --most) {
    if (ClassOf(FirstCharacter(text.substr(at), bytes)) != wanted) break;
  }
  return at;
}

// 's, 't, 're, 've, 'm, 'll, 'd at the front of the text: their size, or 0.
size_t Contraction(std::string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  // The other case of s besides S.
  if (any_case && text.substr(1).starts_with("\u017f")) return 3;
  const auto letter = [&](size_t i) {
    const char c = i < text.size() ? text[i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

// A run of white space before something else keeps its last character for that.
size_t Spaces(std::string_view text, size_t end) {
  if (end == text.size()) return end;
  size_t last = end - 1;
  while ((static_cast<uint8_t>(text[last]) & 0xc0) == 0x80) --last;
  return last > 0 ? last : end;
}

size_t Gpt2Word(std::string_view text) {
  if (const size_t size = Contraction(text, false); size > 0) return size;
  size_t bytes = 0;
  size_t begin = text[0] == ' ' ? 1 : 0;
  if (begin < text.size()) {
    const CharacterClass wanted = ClassOf(FirstCharacter(text.substr(begin), bytes));
    if (wanted != CharacterClass::kSpace) return EndOf(wanted, text, begin);
  }
  return Spaces(text, EndOf(CharacterClass::kSpace, text, 0));
}

size_t Llama3Word(std::string_view text, size_t digits) {
  if (const size_t size = Contraction(text, true); size > 0) return size;
  size_t bytes = 0;
  const CharacterClass first = ClassOf(FirstCharacter(text, bytes));
  if (first == CharacterClass::kLetter) return EndOf(first, text, 0);
  if (first == CharacterClass::kNumber) return EndOf(first, text, 0, digits);
  // One character of any other kind may come before letters.
  if (!IsFeed(text[0])) {
    if (const size_t end = EndOf(CharacterClass::kLetter, text, bytes); end > bytes) return end;
  }
  const size_t begin = text[0] == ' ' ? 1 : 0;
  if (size_t end = EndOf(CharacterClass::kOther, text, begin); end > begin) {
    while (end < text.size() && IsFeed(text[end])) ++end;
    return end;
  }
  const size_t end = EndOf(CharacterClass::kSpace, text, 0);
  for (size_t feed = end; feed > 0; --feed) {
    if (IsFeed(text[feed - 1])) return feed;
  }
  return Spaces(text, end);
}

}  // namespace

std::optional<WordSplit> WordSplitOf(std::string_view expression) {
  for (const auto& known : kKnown) {
    if (known.expression == expression) return known.split;
  }
  return std::nullopt;
}

size_t FirstWord(const WordSplit& split, std::string_view text) {
  switch (split.kind) {
    case WordSplit::Kind::kNone:
      break;
    case WordSplit::Kind::kGpt2:
      return Gpt2Word(text);
    case WordSplit::Kind::kLlama3:
      return Llama3Word(text, split.digits);
  }
  return text.size();
}

}  // namespace nibble
