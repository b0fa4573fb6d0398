#include "common/yaml_scalar.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace nibble {
namespace {

bool IsAlpha(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool IsAlnum(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Words that some reader takes for null, a boolean or a number.
bool IsReservedWord(std::string_view text) {
  constexpr std::array<std::string_view, 11> kWords = {"null", "true", "false", "yes", "no", "on",
                                                       "off",  "y",    "n",     "nan", "inf"};
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::find(kWords.begin(), kWords.end(), lower) != kWords.end();
}

struct Character {
  uint32_t code;
  size_t bytes;
};

// The first character of valid UTF-8.
Character First(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const size_t bytes = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  uint32_t code = bytes == 1 ? lead : lead & (0x7fu >> bytes);
  for (size_t i = 1; i < std::min(bytes, text.size()); ++i) {
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
  }
  return {code, std::min(bytes, text.size())};
}

// Whether readers refuse the character, take it for the end of a line, or drop it.
bool NeedsEscape(uint32_t code) {
  return (code < 0x20 && code != '\t') || (code >= 0x7f && code < 0xa0) || code == 0x2028 ||
         code == 0x2029 || code == 0xfeff || code == 0xfffe || code == 0xffff;
}

}  // namespace

std::string YamlNumber(std::string_view digits) {
  std::string text(digits);
  const size_t exponent = text.find('e');
  if (exponent != std::string::npos && text.find('.') == std::string::npos) {
    text.insert(exponent, ".0");
  }
  return text;
}

bool YamlReadsAsItself(std::string_view text) {
  if (text.empty() || IsReservedWord(text)) return false;
  const char first = text.front();
  if (!IsAlpha(first) && first != '/' && first != '_') return false;
  if (text.back() == ' ' || text.back() == ':') return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool space = c == ' ' && text[i - 1] != ' ' && text[i - 1] != ':';
    if (!IsAlnum(c) && !space && std::string_view("._-/+:@()").find(c) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

std::string YamlQuoted(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const auto [code, bytes] = First(text);
    if (code == '"' || code == '\\') {
      quoted += '\\';
      quoted += text[0];
    } else if (code == '\n') {
      quoted += "\\n";
    } else if (code == '\t') {
      quoted += "\\t";
    } else if (NeedsEscape(code)) {
      std::array<char, 8> escape;
      std::snprintf(escape.data(), escape.size(), code < 0x100 ? "\\x%02x" : "\\u%04x", code);
      quoted += escape.data();
    } else {
      quoted += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return quoted + "\"";
}

bool YamlPrintable(std::string_view text) {
  while (!text.empty()) {
    const auto [code, bytes] = First(text);
    if (code != '\n' && NeedsEscape(code)) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace nibble
