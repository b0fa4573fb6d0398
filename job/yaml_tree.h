// A YAML document as a tree that remembers lines and order, and the text of such a tree.
//
// The subset of YAML that specs need: maps with text keys, lists, scalars, comments, any style of
// quotes and blocks. Aliases and tags are refused, so that a document is never larger than its
// text; anchors without aliases mean nothing. Scalars stay text: their reader knows their type.
//
// Ownership: values. Thread-safety: values and pure functions. yaml-cpp's exceptions stay inside.
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
  int line = 0;                 // counted from 1; 0 where the node was not read
  std::string text;             // of kScalar
  bool quoted = false;          // of kScalar: in quotes or a block, so text and nothing else
  std::vector<YamlNode> items;  // of kList and kMap: the values
  std::vector<Key> keys;        // of kMap, beside its items; a key may be there twice
  std::string comment;          // written above the node's key; never read

  static YamlNode Plain(std::string text);      // numbers, choices, true and false
  static YamlNode Text(std::string_view text);  // in quotes where YAML would take it for more
  static YamlNode List();
  static YamlNode Map();
  // Appends to a map.
  YamlNode& Put(std::string key, YamlNode value);
};

struct YamlLimits {
  size_t bytes;
  int depth;
  size_t nodes;  // keys and values
};

// kNull for a document without content. OutOfRange naming the size and the bound; InvalidArgument
// with the line for what is not YAML, not UTF-8, over the other limits, or refused above.
absl::StatusOr<YamlNode> ReadYaml(std::string_view text, const YamlLimits& limits);

// Block style, two spaces an indent, comments wrapped; reads back as the same tree.
std::string WriteYaml(const YamlNode& map);

// One line, in flow style, without comments.
std::string FlowYaml(const YamlNode& node);

bool IsUtf8(std::string_view text);

}  // namespace nibble

#endif  // NIBBLE_JOB_YAML_TREE_H_
