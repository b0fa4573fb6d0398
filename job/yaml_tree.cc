#include "job/yaml_tree.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include <yaml-cpp/anchor.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/yaml_scalar.h"

namespace nibble {

namespace {

constexpr char kAliases[] =
    "aliases (*name) are not used in specs; put a text that begins with * in quotes";

// Thrown through the yaml-cpp parser and caught in ReadYaml.
struct Refused {
  absl::Status status;
};

absl::Status AtLine(int line, std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", std::string(problem)));
}

// Builds the tree from the parser's events. The node being built is reached by a stack of values,
// because nodes move when their parents grow.
class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const YamlLimits& limits) : limits_(limits) {}

  YamlNode Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    YamlNode node;
    node.line = Line(mark);
    Add(std::move(node));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused{AtLine(Line(mark), kAliases)};
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                const std::string& value) override {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.line = Line(mark);
    node.text = value;
    node.quoted = tag == "!";  // how yaml-cpp marks quotes and blocks
    if (!node.quoted) RefuseTag(tag, mark);
    Add(std::move(node));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kList, tag, mark);
  }
  void OnSequenceEnd() override { Close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, tag, mark);
  }
  void OnMapEnd() override { Close(); }

 private:
  static int Line(const YAML::Mark& mark) { return mark.line + 1; }

  static void RefuseTag(const std::string& tag, const YAML::Mark& mark) {
    if (tag.empty() || tag == "?") return;
    throw Refused{AtLine(Line(mark), "tags (!name) are not used in specs")};
  }

  void Open(YamlNode::Kind kind, const std::string& tag, const YAML::Mark& mark) {
    RefuseTag(tag, mark);
    if (static_cast<int>(open_.size()) >= limits_.depth) {
      throw Refused{
          AtLine(Line(mark), absl::StrCat("nested deeper than ", limits_.depth, " levels"))};
    }
    YamlNode node;
    node.kind = kind;
    node.line = Line(mark);
    RefuseAsKey(node);
    open_.push_back(std::move(node));
  }

  void Close() {
    YamlNode node = std::move(open_.back());
    open_.pop_back();
    Add(std::move(node));
  }

  bool KeyIsDue() const {
    return !open_.empty() && open_.back().kind == YamlNode::Kind::kMap &&
           open_.back().keys.size() == open_.back().items.size();
  }

  void RefuseAsKey(const YamlNode& node) const {
    if (KeyIsDue() && node.kind != YamlNode::Kind::kScalar) {
      throw Refused{AtLine(node.line, "the key of a map must be text")};
    }
  }

  void Add(YamlNode node) {
    if (++nodes_ > limits_.nodes) {
      throw Refused{
          AtLine(node.line, absl::StrCat("more than ", limits_.nodes, " keys and values"))};
    }
    if (open_.empty()) {
      root_ = std::move(node);
    } else if (KeyIsDue()) {
      RefuseAsKey(node);
      open_.back().keys.push_back({std::move(node.text), node.line});
    } else {
      open_.back().items.push_back(std::move(node));
    }
  }

  const YamlLimits limits_;
  size_t nodes_ = 0;
  YamlNode root_;
  std::vector<YamlNode> open_;
};

class SecondDocument : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    throw Refused{AtLine(mark.line + 1, "a second document begins; a spec is a single document")};
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t,
                const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}
};

// yaml-cpp takes some control characters for the end of its input and guesses other encodings, so
// it only gets plain UTF-8.
absl::Status CheckCharacters(std::string_view text) {
  int line = 1;
  for (const char c : text) {
    if (c == '\n') ++line;
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f) {
      return AtLine(line, absl::StrFormat("control character 0x%02x", byte));
    }
  }
  if (!IsUtf8(text)) return absl::InvalidArgumentError("the text is not UTF-8");
  return absl::OkStatus();
}

}  // namespace

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80             ? 1
                          : (lead & 0xe0) == 0xc0 ? 2
                          : (lead & 0xf0) == 0xe0 ? 3
                          : (lead & 0xf8) == 0xf0 ? 4
                                                  : 0;
    if (length == 0 || text.size() - i < length) return false;
    uint32_t code = length == 1 ? lead : lead & (0x7fu >> length);
    for (size_t j = 1; j < length; ++j) {
      const auto next = static_cast<unsigned char>(text[i + j]);
      if ((next & 0xc0) != 0x80) return false;
      code = code << 6 | (next & 0x3f);
    }
    constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < kLeast[length] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) {
      return false;
    }
    i += length;
  }
  return true;
}

absl::StatusOr<YamlNode> ReadYaml(std::string_view text, const YamlLimits& limits) {
  if (text.size() > limits.bytes) {
    return absl::OutOfRangeError(
        absl::StrCat("the text has ", text.size(), " bytes; ", limits.bytes, " are allowed"));
  }
  absl::Status status = CheckCharacters(text);
  if (!status.ok()) return status;
  TreeBuilder builder(limits);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return YamlNode();
    SecondDocument second;
    parser.HandleNextDocument(second);
    return builder.Take();
  } catch (const Refused& refused) {
    return refused.status;
  } catch (const YAML::Exception& error) {
    const int line = std::max(0, error.mark.line) + 1;
    // For an alias without its anchor: an unquoted text that begins with *.
    if (error.msg.starts_with(YAML::ErrorMsg::UNKNOWN_ANCHOR)) return AtLine(line, kAliases);
    return AtLine(line, absl::StrCat("not YAML: ", error.msg));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("reading YAML: ", error.what()));
  }
}

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
