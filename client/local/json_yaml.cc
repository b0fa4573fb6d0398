#include "client/local/json_yaml.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// A text that is written as it is: letters first, then only what means nothing to YAML.
bool IsPlain(const std::string& text) {
  if (text.empty() || !(absl::ascii_isalpha(static_cast<unsigned char>(text[0])) ||
                        text[0] == '/' || text[0] == '_')) {
    return false;
  }
  const auto harmless = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view(" _-./@+()").find(c) != std::string_view::npos;
  };
  if (!std::all_of(text.begin(), text.end(), harmless) || text.back() == ' ') return false;
  constexpr std::array<const char*, 10> kWords = {"y",   "n",    "yes",   "no",   "on",
                                                  "off", "true", "false", "null", "nan"};
  return std::none_of(kWords.begin(), kWords.end(),
                      [&](const char* word) { return absl::EqualsIgnoreCase(text, word); });
}

// Literal blocks keep every character but these.
bool FitsBlock(const std::string& text) {
  return text.find('\n') != std::string::npos && text[0] != ' ' && text[0] != '\n' &&
         text[0] != '\t' && std::all_of(text.begin(), text.end(), [](char c) {
           return c == '\n' || c == '\t' || static_cast<unsigned char>(c) >= 0x20;
         });
}

std::string Scalar(const Json& value, const std::string& indent) {
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (IsPlain(text)) return text;
  // JSON's quotes and escapes are YAML's too.
  if (!FitsBlock(text)) return value.dump(-1, ' ', false, Json::error_handler_t::replace);
  const bool ends = text.back() == '\n';
  const bool ends_twice = absl::EndsWith(text, "\n\n");
  std::string out = ends_twice ? "|+" : ends ? "|" : "|-";
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(text).substr(0, text.size() - (ends ? 1 : 0)), '\n')) {
    absl::StrAppend(&out, "\n", line.empty() ? "" : indent, line);
  }
  return out;
}

// Behind a key or a dash: on the same line what is short, below what has parts.
void Append(const Json& value, const std::string& indent, bool in_list, std::string& out);

void AppendParts(const Json& value, const std::string& indent, bool first_is_placed,
                 std::string& out) {
  bool placed = first_is_placed;
  for (const auto& [key, part] : value.items()) {
    if (!placed) out += indent;
    placed = false;
    if (value.is_array()) {
      out += "-";
    } else {
      absl::StrAppend(&out, Scalar(Json(key), indent), ":");
    }
    Append(part, absl::StrCat(indent, "  "), value.is_array(), out);
  }
}

void Append(const Json& value, const std::string& indent, bool in_list, std::string& out) {
  if (!value.is_structured()) {
    absl::StrAppend(&out, " ", Scalar(value, indent), "\n");
  } else if (value.empty()) {
    absl::StrAppend(&out, " ", value.is_array() ? "[]" : "{}", "\n");
  } else if (in_list) {
    out += ' ';
    AppendParts(value, indent, true, out);
  } else {
    out += '\n';
    AppendParts(value, indent, false, out);
  }
}

}  // namespace

std::string YamlOf(const Json& value) {
  std::string out;
  if (value.is_structured() && !value.empty()) {
    AppendParts(value, "", false, out);
    return out;
  }
  Append(value, "", false, out);
  return out.substr(1);
}

}  // namespace nibble
