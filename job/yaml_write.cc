#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/yaml_scalar.h"
#include "job/yaml_tree.h"

namespace nibble {
namespace {

constexpr size_t kCommentColumns = 92;

std::string Scalar(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kNull) return "null";
  return node.quoted ? YamlQuoted(node.text) : node.text;
}

bool IsScalar(const YamlNode& node) {
  return node.kind == YamlNode::Kind::kScalar || node.kind == YamlNode::Kind::kNull;
}

void WriteComment(std::string_view comment, const std::string& indent, std::string& out) {
  for (const absl::string_view paragraph : absl::StrSplit(std::string(comment), '\n')) {
    std::string line = indent + "#";
    for (const absl::string_view word : absl::StrSplit(std::string(paragraph), ' ')) {
      if (line.size() + 1 + word.size() > kCommentColumns && line.size() > indent.size() + 1) {
        absl::StrAppend(&out, line, "\n");
        line = indent + "#";
      }
      absl::StrAppend(&line, " ", std::string(word));
    }
    absl::StrAppend(&out, std::string(absl::StripTrailingAsciiWhitespace(line)), "\n");
  }
}

void WriteValue(const YamlNode& node, int indent, std::string& out);

void WriteMap(const YamlNode& map, int indent, bool first_indented, std::string& out) {
  const std::string spaces(indent, ' ');
  for (size_t i = 0; i < map.items.size(); ++i) {
    const YamlNode& value = map.items[i];
    if (!value.comment.empty()) {
      if (indent == 0 && i > 0) out += "\n";
      WriteComment(value.comment, spaces, out);
    }
    if (i > 0 || !first_indented) out += spaces;
    absl::StrAppend(&out, Scalar(YamlNode::Text(map.keys[i].text)), ":");
    WriteValue(value, indent + 2, out);
  }
}

// After "key:" or "-".
void WriteValue(const YamlNode& node, int indent, std::string& out) {
  if (IsScalar(node) || node.items.empty()) {
    absl::StrAppend(&out, " ", FlowYaml(node), "\n");
    return;
  }
  out += "\n";
  if (node.kind == YamlNode::Kind::kMap) {
    WriteMap(node, indent, false, out);
    return;
  }
  const std::string spaces(indent, ' ');
  for (const YamlNode& item : node.items) {
    absl::StrAppend(&out, spaces, "-");
    if (item.kind == YamlNode::Kind::kMap && !item.items.empty()) {
      out += " ";
      WriteMap(item, indent + 2, true, out);
    } else {
      WriteValue(item, indent + 2, out);
    }
  }
}

}  // namespace

YamlNode YamlNode::Plain(std::string text) {
  YamlNode node;
  node.kind = Kind::kScalar;
  node.text = std::move(text);
  return node;
}

YamlNode YamlNode::Text(std::string_view text) {
  YamlNode node = Plain(std::string(text));
  node.quoted = !YamlReadsAsItself(text);
  return node;
}

YamlNode YamlNode::List() {
  YamlNode node;
  node.kind = Kind::kList;
  return node;
}

YamlNode YamlNode::Map() {
  YamlNode node;
  node.kind = Kind::kMap;
  return node;
}

YamlNode& YamlNode::Put(std::string key, YamlNode value) {
  keys.push_back({std::move(key), 0});
  items.push_back(std::move(value));
  return *this;
}

std::string FlowYaml(const YamlNode& node) {
  if (IsScalar(node)) return Scalar(node);
  const bool map = node.kind == YamlNode::Kind::kMap;
  std::string out = map ? "{" : "[";
  for (size_t i = 0; i < node.items.size(); ++i) {
    if (i > 0) out += ", ";
    if (map) absl::StrAppend(&out, Scalar(YamlNode::Text(node.keys[i].text)), ": ");
    out += FlowYaml(node.items[i]);
  }
  return out + (map ? "}" : "]");
}

std::string WriteYaml(const YamlNode& map) {
  std::string out;
  WriteMap(map, 0, false, out);
  return out;
}

}  // namespace nibble
