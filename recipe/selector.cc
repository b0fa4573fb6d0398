#include "recipe/selector.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "recipe/fields.h"

namespace nibble {

namespace {

void AddOnce(std::vector<int64_t>& blocks, int64_t block) {
  if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
}

// The blocks of `layers`, if those are all the linear layers of their blocks; otherwise nothing.
std::vector<int64_t> WholeBlocks(const Outline& outline, const std::vector<int64_t>& layers) {
  std::vector<int64_t> blocks;
  for (const int64_t layer : layers) AddOnce(blocks, outline.linears[layer].block);
  size_t inside = 0;
  for (const LinearInfo& layer : outline.linears) {
    inside += std::binary_search(blocks.begin(), blocks.end(), layer.block) ? 1 : 0;
  }
  return inside == layers.size() ? blocks : std::vector<int64_t>();
}

}  // namespace

std::string OperandName(const OperandFormat& operand) {
  if (!operand) return "bf16";
  const HadamardSpec& hadamard = operand->hadamard;
  std::string name =
      absl::StrCat(std::string(Info(operand->format).name), " ", BlockShapeName(operand->block));
  if (operand->rounding == Rounding::kStochastic) absl::StrAppend(&name, " stochastic");
  if (hadamard.size != 0) absl::StrAppend(&name, " hadamard", hadamard.size);
  if (hadamard.size != 0 && hadamard.signs == SignChoice::kNone) {
    absl::StrAppend(&name, " signs=none");
  } else if (hadamard.size != 0 && hadamard.signs == SignChoice::kSeeded) {
    absl::StrAppend(&name, " signs=seeded:", hadamard.seed);
  } else if (hadamard.size != 0 && hadamard.signs == SignChoice::kGiven) {
    absl::StrAppendFormat(&name, " signs=0x%08x%08x%08x%08x", hadamard.mask[3], hadamard.mask[2],
                          hadamard.mask[1], hadamard.mask[0]);
  }
  if (operand->formula != FormulaVersion::kTe2_14) {
    absl::StrAppend(&name, " ", std::string(FormulaVersionName(operand->formula)));
  }
  return name;
}

std::string BlockRanges(const std::vector<int64_t>& blocks, const std::vector<int64_t>& among) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < blocks.size();) {
    size_t end = i + 1;
    auto at = std::find(among.begin(), among.end(), blocks[i]);
    while (end < blocks.size() && ++at < among.end() && *at == blocks[end]) ++end;
    ranges.push_back(end == i + 1 ? absl::StrCat(blocks[i])
                                  : absl::StrCat(blocks[i], "-", blocks[end - 1]));
    i = end;
  }
  return absl::StrCat(blocks.size() == 1 ? "block " : "blocks ", absl::StrJoin(ranges, ", "));
}

std::vector<int64_t> BlocksWith(const Outline& outline, const std::string& kind) {
  std::vector<int64_t> blocks;
  for (const LinearInfo& layer : outline.linears) {
    if (kind.empty() || layer.kind == kind) AddOnce(blocks, layer.block);
  }
  return blocks;
}

std::string DescribeLayers(const Outline& outline, const std::vector<int64_t>& layers) {
  const std::string count = absl::StrCat(layers.size(), layers.size() == 1 ? " layer" : " layers");
  if (layers.size() == outline.linears.size()) return absl::StrCat("all ", count);
  const std::vector<int64_t> whole = WholeBlocks(outline, layers);
  if (!whole.empty()) {
    return absl::StrCat(count, ": ", BlockRanges(whole, BlocksWith(outline, "")));
  }
  std::vector<std::string> kinds, parts;
  for (const int64_t layer : layers) {
    const std::string& kind = outline.linears[layer].kind;
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  }
  for (const std::string& kind : kinds) {
    std::vector<int64_t> blocks;
    for (const int64_t layer : layers) {
      if (outline.linears[layer].kind == kind) AddOnce(blocks, outline.linears[layer].block);
    }
    const std::vector<int64_t> all = BlocksWith(outline, kind);
    parts.push_back(blocks == all ? kind : absl::StrCat(kind, " in ", BlockRanges(blocks, all)));
  }
  return absl::StrCat(count, ": ", absl::StrJoin(parts, "; "));
}

namespace {

constexpr std::string_view kAllowedSelectors =
    "a selector is 'first N blocks', 'last N blocks', 'block N', 'blocks A-B', a kind of layer "
    "(attention.qkv, mlp), a layer's name or a glob over either (blocks.3.*), or KIND in BLOCKS";

std::optional<int64_t> ParseCount(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty() || value < 0) {
    return std::nullopt;
  }
  return value;
}

// * matches any text, ? any one character. Backtracks only to the last star.
bool GlobMatches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool IsGlob(std::string_view pattern) { return pattern.find_first_of("*?") != pattern.npos; }

// A plain pattern also matches every dotted name that it is a prefix of.
bool NameMatches(std::string_view pattern, std::string_view name) {
  if (IsGlob(pattern)) return GlobMatches(pattern, name);
  return name.substr(0, pattern.size()) == pattern &&
         (name.size() == pattern.size() || name[pattern.size()] == '.');
}

bool IsPattern(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '*' || c == '?';
  });
}

// The candidates for a misspelt plain pattern: mixers, kinds, layers.
std::vector<std::string> KnownNames(const Outline& outline) {
  std::vector<std::string> names;
  const auto add = [&names](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const LinearInfo& layer : outline.linears) {
    add(layer.kind);
    add(layer.kind.substr(0, layer.kind.find('.')));
  }
  for (const LinearInfo& layer : outline.linears) names.push_back(layer.name);
  return names;
}

}  // namespace

absl::StatusOr<Selector> Selector::Parse(std::string_view text) {
  Selector selector;
  selector.text_ = std::string(text);
  const auto refuse = [&text] {
    return absl::InvalidArgumentError(absl::StrCat(
        "selector '", std::string(text), "' is not understood; ", std::string(kAllowedSelectors)));
  };
  std::vector<std::string> words = absl::StrSplit(selector.text_, ' ', absl::SkipEmpty());
  if (words.size() == 1 || (words.size() > 2 && words[1] == "in")) {
    if (!IsPattern(words[0])) return refuse();
    selector.pattern_ = words[0];
    words.erase(words.begin(), words.begin() + std::min<size_t>(2, words.size()));
    if (words.empty()) return selector;
  }
  if (words.size() == 3 && (words[0] == "first" || words[0] == "last") &&
      (words[2] == "blocks" || words[2] == "block")) {
    const std::optional<int64_t> count = ParseCount(words[1]);
    if (!count) return refuse();
    selector.range_ = words[0] == "first" ? Range::kFirst : Range::kLast;
    selector.from_ = *count;
    return selector;
  }
  if (words.size() == 2 && (words[0] == "blocks" || words[0] == "block")) {
    const size_t dash = words[1].find('-');
    const std::optional<int64_t> from = ParseCount(std::string_view(words[1]).substr(0, dash));
    const std::optional<int64_t> to =
        dash == std::string::npos ? from : ParseCount(std::string_view(words[1]).substr(dash + 1));
    if (!from || !to || *from > *to) return refuse();
    selector.range_ = Range::kBetween;
    selector.from_ = *from;
    selector.to_ = *to;
    return selector;
  }
  return refuse();
}

absl::Status Selector::CheckRange(int64_t blocks) const {
  if (range_ == Range::kNone) return absl::OkStatus();
  if (range_ == Range::kBetween) {
    if (to_ < blocks) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "selector '", text_, "': block ", to_, " is beyond the model's last block, ", blocks - 1));
  }
  if (from_ >= 1 && from_ <= blocks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("selector '", text_, "': ", from_,
                                                 " blocks of a model of ", blocks,
                                                 "; allowed: 1 to ", blocks));
}

bool Selector::Matches(const LinearInfo& layer, int64_t blocks) const {
  switch (range_) {
    case Range::kNone:
      break;
    case Range::kFirst:
      if (layer.block >= from_) return false;
      break;
    case Range::kLast:
      if (layer.block < blocks - from_) return false;
      break;
    case Range::kBetween:
      if (layer.block < from_ || layer.block > to_) return false;
      break;
  }
  return NameMatches(pattern_, layer.name) || NameMatches(pattern_, layer.kind);
}

absl::StatusOr<std::vector<int64_t>> Selector::Select(const Outline& outline) const {
  const int64_t blocks = outline.spec.blocks();
  NIBBLE_RETURN_IF_ERROR(CheckRange(blocks));
  std::vector<int64_t> layers;
  for (size_t i = 0; i < outline.linears.size(); ++i) {
    if (Matches(outline.linears[i], blocks)) layers.push_back(static_cast<int64_t>(i));
  }
  if (!layers.empty()) return layers;
  const std::vector<std::string> known = KnownNames(outline);
  const bool exists = std::find(known.begin(), known.end(), pattern_) != known.end();
  std::string message = absl::StrCat("selector '", text_, "' matches no linear layer of ",
                                     outline.spec.name.empty() ? "the model" : outline.spec.name);
  if (!IsGlob(pattern_) && !exists) {
    absl::StrAppend(&message, ": ", QuotedWithNearest(pattern_, known));
  }
  return absl::InvalidArgumentError(absl::StrCat(message, "; ", std::string(kAllowedSelectors)));
}

}  // namespace nibble
