#include "job/field_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <optional>
#include <set>
#include <span>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/near_name.h"
#include "common/yaml_scalar.h"
#include "job/job_fields.h"
#include "recipe/fields.h"

namespace nibble {

namespace {

constexpr size_t kMostShown = 60;
constexpr size_t kMostNameBytes = 63;
constexpr size_t kMostTextBytes = 1000;
constexpr size_t kMostSettings = 128;

// A plain scalar, without blanks; a minus is the only sign allowed.
template <class T>
std::optional<T> ParseNumber(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kScalar || node.quoted) return std::nullopt;
  T value = 0;
  const char* const end = node.text.data() + node.text.size();
  const auto [stop, error] = std::from_chars(node.text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

template <class T>
void ReadNumber(const YamlNode& node, const std::string& path, const Range<T>& range,
                std::string_view kind, T& value, Problems& problems) {
  if (const std::optional<T> read = ParseNumber<T>(node)) {
    value = *read;
    return;
  }
  problems.Add(path,
               absl::StrCat(Shown(node), " is not ", std::string(kind), " in ", RangeText(range)));
}

std::string ShownText(std::string_view text) { return absl::StrCat("'", ShownName(text), "'"); }

std::string DidYouMean(std::string_view given, std::span<const std::string> known) {
  const std::string nearest = NearestName(given, known);
  return nearest.empty() ? "" : absl::StrCat(", did you mean ", nearest, "?");
}

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
}

std::optional<std::string> WrongText(std::string_view value, const TextRule& rule) {
  const size_t most = rule.kind == TextRule::Kind::kName ? kMostNameBytes : kMostTextBytes;
  if (value.size() > most) {
    return absl::StrCat(ShownText(value), " has ", value.size(), " bytes; at most ", most,
                        " are allowed");
  }
  bool good = IsUtf8(value) && (rule.may_be_empty || !value.empty());
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    good = good && byte >= 0x20 && byte != 0x7f;
    if (rule.kind == TextRule::Kind::kName) good = good && IsNameCharacter(c);
  }
  if (rule.kind == TextRule::Kind::kName && !value.empty()) {
    good = good && absl::ascii_isalnum(static_cast<unsigned char>(value.front()));
  }
  if (good) return std::nullopt;
  return absl::StrCat(ShownText(value), " is not ", AllowedText(rule));
}

}  // namespace

std::string ValueText(int64_t value) { return absl::StrCat(value); }
std::string ValueText(uint64_t value) { return absl::StrCat(value); }

std::string ValueText(double value) {
  std::array<char, 32> digits;
  const auto result = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  return YamlNumber(std::string_view(digits.data(), result.ptr - digits.data()));
}

std::string AllowedText(const TextRule& rule) {
  switch (rule.kind) {
    case TextRule::Kind::kName:
      return absl::StrCat("letters, digits, '.', '_' and '-', a letter or digit first, at most ",
                          kMostNameBytes);
    case TextRule::Kind::kPath:
      return rule.may_be_empty ? "a path or nothing" : "a path";
    case TextRule::Kind::kLine:
      break;
  }
  return rule.may_be_empty ? "one line or nothing" : "one line";
}

std::string ShownName(std::string_view name) {
  if (name.size() <= kMostShown) return absl::Utf8SafeCEscape(std::string(name));
  size_t end = kMostShown;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0) == 0x80) --end;
  return absl::StrCat(absl::Utf8SafeCEscape(std::string(name.substr(0, end))), "…");
}

std::string Shown(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kList:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a map";
    case YamlNode::Kind::kScalar:
      break;
  }
  return absl::StrCat(node.quoted ? "the text " : "", ShownText(node.text));
}

void ReadValue(const YamlNode& node, const std::string& path, const Range<int64_t>& range,
               int64_t& value, Problems& problems) {
  ReadNumber(node, path, range, "a whole number", value, problems);
}

void ReadValue(const YamlNode& node, const std::string& path, const Range<uint64_t>& range,
               uint64_t& value, Problems& problems) {
  ReadNumber(node, path, range, "a whole number", value, problems);
}

void ReadValue(const YamlNode& node, const std::string& path, const Range<double>& range,
               double& value, Problems& problems) {
  ReadNumber(node, path, range, "a number", value, problems);
}

void ReadBool(const YamlNode& node, const std::string& path, bool& value, Problems& problems) {
  const bool plain = node.kind == YamlNode::Kind::kScalar && !node.quoted;
  if (plain && (node.text == "true" || node.text == "false")) {
    value = node.text == "true";
    return;
  }
  problems.Add(path, absl::StrCat(Shown(node), " is neither true nor false"));
}

void ReadText(const YamlNode& node, const std::string& path, std::string& value,
              Problems& problems) {
  if (node.kind == YamlNode::Kind::kScalar) {
    value = node.text;
    return;
  }
  problems.Add(path, absl::StrCat(Shown(node), " is not text"));
}

int ReadName(const YamlNode& node, const std::string& path, std::span<const std::string> names,
             Problems& problems) {
  std::string hint;
  if (node.kind == YamlNode::Kind::kScalar) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == node.text) return static_cast<int>(i);
    }
    hint = DidYouMean(node.text, names);
  }
  problems.Add(path, absl::StrCat(Shown(node), " is not one of ",
                                  absl::StrJoin(names.begin(), names.end(), ", "), hint));
  return -1;
}

namespace {

// Reads a map of at most `most` texts as entries, whose two members are the key and the text.
// `what` describes the map.
template <class Entry>
void ReadMap(const YamlNode& node, const std::string& path, const char* what, int64_t most,
             std::string Entry::*text, std::vector<Entry>& value, Problems& problems) {
  if (node.kind == YamlNode::Kind::kNull) return;
  if (node.kind != YamlNode::Kind::kMap) {
    problems.Add(path, absl::StrCat(Shown(node), " is not a map of ", what));
    return;
  }
  if (static_cast<int64_t>(node.items.size()) > most) {
    CheckCount(node.items.size(), path, {0, most}, problems);
    return;
  }
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode::Key& key = node.keys[i];
    const std::string inner = absl::StrCat(path, ".", ShownName(key.text));
    problems.SetLine(inner, key.line);
    ReadText(node.items[i], inner, value.emplace_back(Entry{key.text, ""}).*text, problems);
  }
}

}  // namespace

void ReadSettings(const YamlNode& node, const std::string& path, std::vector<FieldSetting>& value,
                  Problems& problems) {
  ReadMap(node, path, "recipe fields", kMostSettings, &FieldSetting::value, value, problems);
}

void ReadTexts(const YamlNode& node, const std::string& path, std::vector<NamedText>& value,
               Problems& problems) {
  ReadMap(node, path, "names and texts", kMaxNamedTexts, &NamedText::text, value, problems);
}

YamlNode WriteTexts(const std::vector<NamedText>& texts) {
  YamlNode map = YamlNode::Map();
  for (const NamedText& entry : texts) map.Put(entry.name, YamlNode::Text(entry.text));
  return map;
}

YamlNode WriteSettings(const std::vector<FieldSetting>& settings) {
  YamlNode map = YamlNode::Map();
  for (const FieldSetting& setting : settings) {
    const bool digits = setting.value.find_first_not_of("0123456789") == std::string::npos;
    map.Put(setting.field, digits && !setting.value.empty() ? YamlNode::Plain(setting.value)
                                                            : YamlNode::Text(setting.value));
  }
  return map;
}

void CheckText(std::string_view value, const std::string& path, const TextRule& rule,
               Problems& problems) {
  if (const std::optional<std::string> wrong = WrongText(value, rule)) problems.Add(path, *wrong);
}

void CheckSettings(const std::vector<FieldSetting>& settings, const std::string& path,
                   Problems& problems) {
  std::set<std::string> seen;
  for (const FieldSetting& setting : settings) {
    const std::string inner = absl::StrCat(path, ".", ShownName(setting.field));
    if (!seen.insert(setting.field).second) {
      problems.Add(inner, "set twice");
      continue;
    }
    if (!problems.Sound(inner)) continue;
    const absl::StatusOr<FieldValue> parsed = ParseField(setting);
    if (!parsed.ok()) problems.Add(inner, parsed.status());
  }
}

void CheckCount(size_t count, const std::string& path, const Range<int64_t>& range,
                Problems& problems) {
  const auto entries = static_cast<int64_t>(count);
  if (range.Contains(entries)) return;
  problems.Add(path, absl::StrCat(entries, " entries; allowed: ", range.least, " to ", range.most));
}

namespace {

// A field of that name in another section.
std::string Elsewhere(std::string_view name) {
  for (const FieldDoc& doc : JobFieldDocs()) {
    if (doc.path.ends_with(absl::StrCat(".", std::string(name)))) return doc.path;
  }
  return "";
}

std::string UnknownField(std::string_view name, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, std::span<const std::string>(known));
  if (!nearest.empty()) return absl::StrCat("unknown field, did you mean ", nearest, "?");
  const std::string elsewhere = Elsewhere(name);
  if (!elsewhere.empty()) return absl::StrCat("unknown field here, did you mean ", elsewhere, "?");
  return absl::StrCat("unknown field; known here: ", absl::StrJoin(known, ", "));
}

}  // namespace

std::string JoinPath(std::string_view path, std::string_view name) {
  return path.empty() ? std::string(name) : absl::StrCat(std::string(path), ".", std::string(name));
}

std::vector<const YamlNode*> MatchKeys(const YamlNode& node, const std::string& path,
                                       const std::vector<std::string>& names,
                                       const std::string& shorthand, Problems& problems) {
  std::vector<const YamlNode*> given(names.size(), nullptr);
  if (node.kind == YamlNode::Kind::kNull) return given;
  if (node.kind == YamlNode::Kind::kScalar && !shorthand.empty()) {
    given[std::find(names.begin(), names.end(), shorthand) - names.begin()] = &node;
    return given;
  }
  if (node.kind != YamlNode::Kind::kMap) {
    problems.Add(path.empty() ? "job" : path,
                 absl::StrCat(Shown(node), " is not a map of ", absl::StrJoin(names, ", ")));
    return {};
  }
  std::vector<int> lines(names.size(), 0);
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode::Key& key = node.keys[i];
    const size_t at = std::find(names.begin(), names.end(), key.text) - names.begin();
    const std::string inner = JoinPath(path, ShownName(key.text));
    if (at == names.size()) {
      problems.SetLine(inner, key.line);
      problems.Add(inner, UnknownField(key.text, names));
    } else if (given[at] != nullptr) {
      problems.Add(inner, absl::StrCat("given twice, first in line ", lines[at]), key.line);
    } else {
      given[at] = &node.items[i];
      lines[at] = key.line;
      problems.SetLine(inner, key.line);
    }
  }
  return given;
}

bool IsListOf(const YamlNode& node, const std::string& path, const Range<int64_t>& count,
              Problems& problems) {
  if (node.kind == YamlNode::Kind::kNull) return true;
  if (node.kind != YamlNode::Kind::kList) {
    problems.Add(path, absl::StrCat(Shown(node), " is not a list"));
    return false;
  }
  // CheckCount reports a list that is too short, together with other invalid values.
  if (static_cast<int64_t>(node.items.size()) <= count.most) return true;
  CheckCount(node.items.size(), path, count, problems);
  return false;
}

}  // namespace nibble
