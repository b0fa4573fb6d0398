// A YAML document as a tree that keeps lines and order, and writing such a tree as text.
//
// Reads the subset of YAML that specs need: maps with text keys, lists, scalars, comments, all
// styles of quotes and blocks. Aliases and tags are refused, so that a document is never larger
// than its text; anchors are ignored. Scalars stay text: the reader of a field knows its type.
//
// Ownership: values. Thread-safety: values and pure functions. No yaml-cpp exceptions escape.
#ifndef NIBBLE_JOB_YAML_TREE_H_
#define NIBBLE_JOB_YAML_TREE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace nibble {

struct YamlNode {
  enum class Kind : uint8_t { kNull, kScalar, kList, kMap };
  struct Key {
    std::string text;
    int line = 0;
  };

  Kind kind = Kind::kNull;
  int line = 0;                 // counted from 1; 0 for a node that was not read
  std::string text;             // of kScalar
  bool quoted = false;          // of kScalar: in quotes or a block, so always text
  std::vector<YamlNode> items;  // of kList and kMap: the values
  std::vector<Key> keys;        // of kMap, parallel to its items; may contain duplicates
  std::string comment;          // written above the node's key; not set by ReadYaml

  static YamlNode Plain(std::string text);      // for numbers, choices, true and false
  static YamlNode Text(std::string_view text);  // quoted if YAML would read it as another type
  static YamlNode List();
  static YamlNode Map();
  // Appends an entry to a map.
  YamlNode& Put(std::string key, YamlNode value);
};

struct YamlLimits {
  size_t bytes;
  int depth;
  size_t nodes;  // keys and values
};

// kNull for an empty document. OutOfRange naming the size and the limit; InvalidArgument with the
// line for text that is not YAML or UTF-8, exceeds another limit, or uses a refused feature.
absl::StatusOr<YamlNode> ReadYaml(std::string_view text, const YamlLimits& limits);

// Block style, indented by two spaces, comments wrapped; reads back as the same tree.
std::string WriteYaml(const YamlNode& map);

// One line, in flow style, without comments.
std::string FlowYaml(const YamlNode& node);

bool IsUtf8(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_JOB_YAML_TREE_H_
