#include "kernels/cpu/vector_file.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace nibble {
namespace {

using Tokens = std::vector<std::string>;

Tokens Split(std::string_view text, std::string_view separators) {
  Tokens tokens;
  while (true) {
    const size_t begin = text.find_first_not_of(separators);
    if (begin == text.npos) return tokens;
    const size_t end = std::min(text.find_first_of(separators, begin), text.size());
    tokens.emplace_back(text.substr(begin, end - begin));
    text.remove_prefix(end);
  }
}

std::string_view Strip(std::string_view text) {
  const size_t begin = std::min(text.find_first_not_of(" \t\r"), text.size());
  return text.substr(begin, text.find_last_not_of(" \t\r") + 1 - begin);
}

void ConsumePrefix(std::string_view* text, std::string_view prefix) {
  if (text->starts_with(prefix)) text->remove_prefix(prefix.size());
}

std::string_view StripSuffix(std::string_view text, std::string_view suffix) {
  if (text.ends_with(suffix)) text.remove_suffix(suffix.size());
  return text;
}

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool Has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::optional<uint32_t> Hex(std::string_view text) {
  ConsumePrefix(&text, "0x");
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The first hexadecimal integer after `key`; skips hexadecimal floats (0x1.8p+2).
std::optional<uint32_t> HexAfter(std::string_view line, std::string_view key) {
  size_t at = line.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  for (at = line.find("0x", at + key.size()); at != std::string_view::npos;
       at = line.find("0x", at + 2)) {
    size_t end = at + 2;
    while (end < line.size() && std::isxdigit(static_cast<unsigned char>(line[end]))) ++end;
    if (end < line.size() && (line[end] == 'p' || line[end] == '.')) continue;
    return Hex(line.substr(at, end - at));
  }
  return std::nullopt;
}

Tokens Words(std::string_view text) { return Split(text, " \t,"); }

// All of `text` as integers of exactly `digits` hexadecimal digits, or nothing.
std::optional<std::vector<uint32_t>> HexList(std::string_view text, size_t digits) {
  std::vector<uint32_t> values;
  for (std::string_view word : Words(text)) {
    ConsumePrefix(&word, "0x");
    const std::optional<uint32_t> value = Hex(word);
    if (!value || word.size() != digits) return std::nullopt;
    values.push_back(*value);
  }
  if (values.empty()) return std::nullopt;
  return values;
}

template <class T>
bool Append(const std::optional<std::vector<uint32_t>>& values, std::vector<T>& to) {
  if (!values) return false;
  for (const uint32_t value : *values) to.push_back(static_cast<T>(value));
  return true;
}

// "2^-10", "3*2^-10", ".25", "0x1p-10", "+inf", "-0", "NaN".
std::optional<double> Number(std::string_view text) {
  if (text.empty()) return std::nullopt;
  if (const size_t star = text.find('*'); star != std::string_view::npos) {
    const std::optional<double> a = Number(text.substr(0, star));
    const std::optional<double> b = Number(text.substr(star + 1));
    return a && b ? std::optional<double>(*a * *b) : std::nullopt;
  }
  if (const size_t power = text.find('^'); power != std::string_view::npos) {
    const std::optional<double> base = Number(text.substr(0, power));
    const std::optional<double> exponent = Number(text.substr(power + 1));
    return base && exponent ? std::optional<double>(std::pow(*base, *exponent)) : std::nullopt;
  }
  const std::string copy(text);
  char* end;
  const double value = std::strtod(copy.c_str(), &end);
  return *end == '\0' ? std::optional<double>(value) : std::nullopt;
}

class Parser {
 public:
  VectorFile Parse(std::string_view text) {
    for (std::string_view line : Split(text, "\n")) Line(Strip(line));
    EndCase();
    EndSection();
    return std::move(file_);
  }

 private:
  std::string Where() const { return title_.empty() ? section_ : section_ + " / " + title_; }

  void Line(std::string_view line) {
    if (line.empty() || line.starts_with("```")) return;
    if (line.starts_with("### ")) {
      EndCase();
      title_ = line.substr(4);
      return;
    }
    if (line.starts_with("#")) {
      EndCase();
      EndSection();
      section_ = Strip(line.substr(line.find_first_not_of("# ")));
      title_ = "";
      cases_before_ = file_.cases();
      // Lines directly below the document's title are prose.
      preamble_ = !line.starts_with("##");
      return;
    }
    if (preamble_) return;
    section_has_text_ = true;
    if (Philox(line) || Casts(line) || Stochastic(line) || Transform(line) || Block(line)) return;
    unread_.push_back(Where() + ": " + std::string(line.substr(0, 100)));
  }

  // A section without cases is reported once; other sections by the lines that were not parsed,
  // prose included.
  void EndSection() {
    if (section_has_text_ && file_.cases() == cases_before_) {
      file_.not_understood.push_back("section \"" + section_ + "\"");
    } else {
      for (const std::string& line : unread_) file_.not_understood.push_back("line " + line);
    }
    unread_.clear();
    section_has_text_ = false;
  }

  void EndCase() {
    if (!block_.x.empty()) {
      block_.title = Where();
      const std::string about = Lower(block_.title);
      if (Has(about, "mxfp4")) block_.format = Format::kMxfp4;
      if (Has(about, "mxfp8")) block_.format = Format::kMxfp8;
      if (Has(about, "pre-2.14") || Has(about, "before 2.14")) {
        block_.formula = FormulaVersion::kTePre2_14;
      }
      if (block_.format == Format::kNvfp4 && block_.x.size() == 256) block_.rows = 16;
      const size_t columns = block_.format == Format::kNvfp4 ? 16 : 32;
      const bool whole = block_.x.size() == columns * block_.rows;
      if (whole && (block_.scale || !block_.codes.empty())) {
        file_.blocks.push_back(block_);
      } else {
        file_.not_understood.push_back("case \"" + block_.title + "\" of " +
                                       std::to_string(block_.x.size()) + " values");
      }
    }
    block_ = BlockCase();
    list_ = List::kNone;
  }

  bool Philox(std::string_view line) {
    if (!line.starts_with("philox4x32")) return false;
    std::vector<uint32_t> words;
    for (std::string_view word : Words(line)) {
      if (const auto value = Hex(word); value && word.size() == 8) words.push_back(*value);
    }
    if (words.size() != 10) return false;
    PhiloxCase c;
    for (int i = 0; i < 4; ++i) c.counter[i] = words[i];
    for (int i = 0; i < 2; ++i) c.key[i] = words[4 + i];
    for (int i = 0; i < 4; ++i) c.expected[i] = words[6 + i];
    file_.philox.push_back(c);
    return true;
  }

  // "- E4M3 RNE: 2^-10->00 (tie), just above 2^-10->01, >=448..inf->7e, NaN->7f."
  bool Casts(std::string_view line) {
    ConsumePrefix(&line, "- ");
    Element element;
    if (line.starts_with("E2M1")) {
      element = Element::kE2M1;
    } else if (line.starts_with("E4M3")) {
      element = Element::kE4M3;
    } else if (line.starts_with("E5M2")) {
      element = Element::kE5M2;
    } else {
      return false;
    }
    const size_t before = file_.casts.size();
    if (const size_t at = line.find("One ulp below/above"); at != std::string_view::npos) {
      CastNeighbours(element, line.substr(0, at), line.substr(at));
    }
    std::string previous;
    for (std::string word : Words(line.substr(0, line.find("One ulp")))) {
      const bool above = previous == "above";
      const bool below = previous == "below";
      previous = word;
      word = std::string(StripSuffix(StripSuffix(word, "."), ";"));
      const size_t arrow = word.find("->");
      if (arrow == std::string::npos) continue;
      std::string_view x = std::string_view(word).substr(0, arrow);
      ConsumePrefix(&x, ">=");
      const std::optional<uint32_t> code = Hex(std::string_view(word).substr(arrow + 2));
      // "448..inf": both ends of a range.
      const size_t range = x.find("..");
      for (const std::string_view end :
           {x.substr(0, range), range == x.npos ? x.substr(0, 0) : x.substr(range + 2)}) {
        if (end.empty()) continue;
        const std::optional<double> number = Number(end);
        if (!number || !code) {
          unread_.push_back(Where() + ": " + word);
          continue;
        }
        float value = static_cast<float>(*number);
        const float inf = std::numeric_limits<float>::infinity();
        if (above) value = std::nextafter(value, inf);
        if (below) value = std::nextafter(value, -inf);
        file_.casts.push_back({word, element, value, *code});
        if (std::isnan(value) && Has(line, "either sign")) {
          file_.casts.push_back({word, element, -value, *code});
        }
      }
    }
    return file_.casts.size() > before;
  }

  // "One ulp below/above the same points: 0/1 1/2": one pair for each point of `points`.
  void CastNeighbours(Element element, std::string_view points, std::string_view pairs) {
    std::vector<float> at;
    for (const std::string& word : Words(points)) {
      const size_t arrow = word.find("->");
      const auto x = arrow == word.npos ? std::nullopt : Number(word.substr(0, arrow));
      if (x) at.push_back(static_cast<float>(*x));
    }
    size_t index = 0;
    for (const std::string& word : Words(pairs.substr(pairs.find(':') + 1))) {
      const size_t slash = word.find('/');
      if (slash == word.npos || index >= at.size()) continue;
      const auto low = Hex(std::string_view(word).substr(0, slash));
      const auto high = Hex(StripSuffix(std::string_view(word).substr(slash + 1), "."));
      if (!low || !high) continue;
      const float x = at[index++];
      file_.casts.push_back({"below " + word, element, std::nextafter(x, 0.0f), *low});
      file_.casts.push_back({"above " + word, element, std::nextafter(x, 2 * x), *high});
    }
  }

  // "SR (soft) x: r8=00 40 80 c0 ff", followed by "0.1: 0 0 0 0 0.5" for each x.
  bool Stochastic(std::string_view line) {
    if (line.starts_with("SR") && Has(line, "r8=")) {
      random_.clear();
      return Append(HexList(line.substr(line.find("r8=") + 3), 2), random_);
    }
    const size_t colon = line.find(':');
    if (random_.empty() || colon == line.npos) return false;
    const std::optional<double> x = Number(line.substr(0, colon));
    if (!x) return false;
    StochasticCase c = {std::string(line), static_cast<float>(*x), random_, {}};
    for (const std::string& word : Words(line.substr(colon + 1))) {
      const std::optional<double> value = Number(word);
      if (!value) return false;
      c.expected.push_back(static_cast<float>(*value));
    }
    if (c.expected.size() != random_.size()) return false;
    file_.stochastic.push_back(std::move(c));
    return true;
  }

  // "in : …" and "out: …", BF16, below a title with the mask; decimals may follow.
  bool Transform(std::string_view line) {
    const size_t colon = line.find(':');
    if (line.starts_with("in") && colon != line.npos) {
      transform_ = HadamardCase();
      return Append(HexList(line.substr(colon + 1), 4), transform_.in);
    }
    if (!transform_.in.empty() && line.starts_with("out") && colon != line.npos) {
      if (!Append(HexList(line.substr(colon + 1), 4), transform_.out)) return false;
      uint32_t mask = HexAfter(title_, "mask").value_or(0xd7e8);
      if (mask < 0x10000) mask |= mask << 16;
      transform_.title = Where();
      transform_.spec = {.size = static_cast<int>(transform_.in.size()),
                         .signs = SignChoice::kGiven,
                         .mask = {mask, mask, mask, mask}};
      if (transform_.out.size() != transform_.in.size()) return false;
      file_.transforms.push_back(transform_);
      return true;
    }
    // The same values in decimal.
    if (transform_.out.empty() || !block_.x.empty()) return false;
    for (const std::string& word : Words(line)) {
      if (!Number(word)) return false;
    }
    return true;
  }

  bool Block(std::string_view line) {
    if (line.starts_with("global_amax")) {
      if (!block_.x.empty()) EndCase();
      block_.global_amax = HexAfter(line, "global_amax");
      block_.s_enc = HexAfter(line, "S_enc ");
      block_.s_enc_over_6 = HexAfter(line, "S_enc*(1/6)");
      return block_.global_amax.has_value();
    }
    if (line.starts_with("scale")) {
      block_.scale = HexAfter(line, "scale");
      block_.enc = HexAfter(line, " enc ");
      return block_.scale.has_value();
    }
    const size_t colon = line.rfind(':');
    const std::string_view values = colon == line.npos ? line : line.substr(colon + 1);
    if (colon != line.npos) {
      list_ = line.starts_with("x")           ? List::kX
              : line.starts_with("codes")     ? List::kCodes
              : line.starts_with("bytes")     ? List::kBytes
              : line.starts_with("bf16 emul") ? List::kEmulated
              : line.starts_with("dequant")   ? List::kDequant
              : line.starts_with("row")       ? list_
                                              : List::kNone;
    }
    return Strip(values).empty() ? list_ != List::kNone : AddValues(values);
  }

  // Values of the list that was named last; long lists continue over several lines.
  bool AddValues(std::string_view values) {
    switch (list_) {
      case List::kX:
        if (const auto bf16 = HexList(values, 4)) {
          for (const uint32_t bits : *bf16) block_.x.push_back(bits << 16);
          return true;
        }
        return Append(HexList(values, 8), block_.x);
      case List::kCodes:
        return Append(HexList(values, 1), block_.codes) || Append(HexList(values, 2), block_.codes);
      case List::kBytes:
        return Append(HexList(values, 2), block_.bytes);
      case List::kEmulated:
        return Append(HexList(values, 4), block_.emulated);
      case List::kDequant:
        return Append(HexList(values, 8), block_.dequant);
      case List::kNone:
        break;
    }
    return false;
  }

  enum class List { kNone, kX, kCodes, kBytes, kEmulated, kDequant };

  VectorFile file_;
  std::string section_, title_;
  bool preamble_ = true;
  bool section_has_text_ = false;
  size_t cases_before_ = 0;
  std::vector<std::string> unread_;
  BlockCase block_;
  List list_ = List::kNone;
  HadamardCase transform_;
  std::vector<uint32_t> random_;
};

}  // namespace

VectorFile ParseVectors(std::string_view text) { return Parser().Parse(text); }

}  // namespace nibble
