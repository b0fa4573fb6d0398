#include "worker/trainer/data/byte_pairs.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "worker/trainer/data/unicode.h"

namespace nibble {

namespace {

constexpr struct {
  std::string_view expression;
  WordSplit split;
} kExpressions[] = {
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

// The end of the run of characters of a class from `begin`, at most `most` of them.
size_t EndOf(CharacterClass wanted, std::string_view text, size_t begin,
             size_t most = std::string_view::npos) {
  size_t at = begin;
  for (size_t bytes = 0; at < text.size() && most > 0; at += bytes, --most) {
    if (ClassOf(FirstCharacter(text.substr(at), bytes)) != wanted) break;
  }
  return at;
}

// The size of a contraction ('s, 't, 're, 've, 'm, 'll, 'd) at the front of the text, or 0.
size_t Contraction(std::string_view text, bool any_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  // U+017F, which also folds to s.
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

// A run of white space before another character leaves its last character to the next word.
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
  for (const auto& known : kExpressions) {
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

namespace {

uint64_t Key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

struct Link {
  int32_t symbol;
  int32_t before, after;  // -1: none
  bool gone = false;      // joined to the one before
};

struct Candidate {
  int32_t rank;
  int32_t at;  // index of the left side
  int32_t joined;
};
struct Later {
  bool operator()(const Candidate& a, const Candidate& b) const {
    return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
  }
};

}  // namespace

BytePairs::BytePairs(const std::vector<Merge>& merges) {
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    merges_[Key(merge.left, merge.right)] = {static_cast<int32_t>(rank), merge.joined};
  }
}

const BytePairs::Joined* BytePairs::Find(int32_t left, int32_t right) const {
  const auto found = merges_.find(Key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BytePairs::Join(std::vector<int32_t>& symbols) const {
  if (symbols.size() < 2) return;
  const auto count = static_cast<int32_t>(symbols.size());
  std::vector<Link> links(symbols.size());
  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate, std::vector<Candidate>, Later> queue(Later{}, std::move(storage));
  const auto consider = [&](int32_t at) {
    if (at < 0 || links[at].after < 0) return;
    const Joined* joined = Find(links[at].symbol, links[links[at].after].symbol);
    if (joined != nullptr) queue.push({joined->rank, at, joined->symbol});
  };
  for (int32_t i = 0; i < count; ++i) links[i] = {symbols[i], i - 1, i + 1 < count ? i + 1 : -1};
  for (int32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Link& left = links[top.at];
    if (left.gone || left.after < 0) continue;
    Link& right = links[left.after];
    // Its sides may have changed. The merge applies if they still join to the same symbol, by any
    // rule, as in Hugging Face's tokenizers.
    const Joined* now = Find(left.symbol, right.symbol);
    if (now == nullptr || now->symbol != top.joined) continue;
    left.symbol = top.joined;
    left.after = right.after;
    right.gone = true;
    if (left.after >= 0) links[left.after].before = top.at;
    consider(left.before);
    consider(top.at);
  }
  symbols.clear();
  for (int32_t i = 0; i >= 0; i = links[i].after) symbols.push_back(links[i].symbol);
}

}  // namespace nibble
