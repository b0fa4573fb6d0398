#include "client/local/json_yaml.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/yaml_scalar.h"

namespace nibble {
namespace {

using Json = nlohmann::ordered_json;

// A literal block keeps every character that needs no escape; its first tells how far it is
// indented.
bool FitsBlock(const std::string& text) {
  return text.find('\n') != std::string::npos && text[0] != ' ' && text[0] != '\n' &&
         text[0] != '\t' && YamlPrintable(text);
}

std::string Scalar(const Json& value, const std::string& indent) {
  if (value.is_number_float()) return YamlNumber(value.dump());
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  if (YamlReadsAsItself(text)) return text;
  if (!FitsBlock(text)) return YamlQuoted(text);
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
      absl::StrAppend(&out, YamlReadsAsItself(key) ? key : YamlQuoted(key), ":");
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
