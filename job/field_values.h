// The values that a field of a spec can have: reading them from a YAML node, writing, checking and
// describing them. All messages about invalid values are made here.
//
// Readers add a problem and leave the value unchanged if the node has another type. They do not
// check ranges: the Check functions do, for values from any source.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_JOB_FIELD_VALUES_H_
#define NIBBLE_JOB_FIELD_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "job/job_spec.h"
#include "job/problems.h"
#include "job/yaml_tree.h"
#include "recipe/recipe.h"

namespace nibble {

// [least, most], except for the ends that are open.
template <class T>
struct Range {
  T least;
  T most;
  bool above_least = false;
  bool below_most = false;

  // False for NaN.
  bool Contains(T value) const {
    return (above_least ? value > least : value >= least) &&
           (below_most ? value < most : value <= most);
  }
};

std::string ValueText(int64_t value);
std::string ValueText(uint64_t value);
// The shortest text that reads back as the same value and that every YAML reader takes for a
// number.
std::string ValueText(double value);

// "(0, 10]"
template <class T>
std::string RangeText(const Range<T>& range) {
  return (range.above_least ? "(" : "[") + ValueText(range.least) + ", " + ValueText(range.most) +
         (range.below_most ? ")" : "]");
}

struct TextRule {
  enum class Kind : uint8_t { kName, kPath, kLine };
  Kind kind;
  bool may_be_empty = false;
};
std::string AllowedText(const TextRule& rule);

void ReadValue(const YamlNode& node, const std::string& path, const Range<int64_t>& range,
               int64_t& value, Problems& problems);
void ReadValue(const YamlNode& node, const std::string& path, const Range<uint64_t>& range,
               uint64_t& value, Problems& problems);
void ReadValue(const YamlNode& node, const std::string& path, const Range<double>& range,
               double& value, Problems& problems);
void ReadBool(const YamlNode& node, const std::string& path, bool& value, Problems& problems);
void ReadText(const YamlNode& node, const std::string& path, std::string& value,
              Problems& problems);
// The index of the name, or -1.
int ReadName(const YamlNode& node, const std::string& path, std::span<const std::string> names,
             Problems& problems);
void ReadSettings(const YamlNode& node, const std::string& path, std::vector<FieldSetting>& value,
                  Problems& problems);

// Reads a map of names and texts; numbers and words are taken as text.
void ReadTexts(const YamlNode& node, const std::string& path, std::vector<NamedText>& value,
               Problems& problems);
YamlNode WriteTexts(const std::vector<NamedText>& texts);

YamlNode WriteSettings(const std::vector<FieldSetting>& settings);

template <class T>
void CheckRange(T value, const std::string& path, const Range<T>& range, Problems& problems) {
  if (range.Contains(value)) return;
  problems.Add(path, ValueText(value) + " is not in " + RangeText(range));
}
void CheckText(std::string_view value, const std::string& path, const TextRule& rule,
               Problems& problems);
// Every field must be a recipe field with an allowed value, and set once.
void CheckSettings(const std::vector<FieldSetting>& settings, const std::string& path,
                   Problems& problems);
void CheckCount(size_t count, const std::string& path, const Range<int64_t>& range,
                Problems& problems);

// The node in an error message: "'abc'", "a list". Long texts are truncated.
std::string Shown(const YamlNode& node);
// A key as part of a path, escaped and truncated in the same way.
std::string ShownName(std::string_view name);

// Matches the keys of a map with the fields of a record; reports unknown and duplicate keys.
//
// Ownership: the results borrow the nodes. Thread-safety: pure functions.

// "a.b", or "b" at the top.
std::string JoinPath(std::string_view path, std::string_view name);

// The node of each name, or null for absent keys. A scalar is the value of the field `shorthand`,
// unless that is empty; a null node is a map without keys. Adds a problem and returns nothing for
// other nodes.
std::vector<const YamlNode*> MatchKeys(const YamlNode& node, const std::string& path,
                                       const std::vector<std::string>& names,
                                       const std::string& shorthand, Problems& problems);

// The entries of a list, none for a null node. Adds a problem for other nodes.
bool IsListOf(const YamlNode& node, const std::string& path, const Range<int64_t>& count,
              Problems& problems);

}  // namespace nibble

#endif  // NIBBLE_JOB_FIELD_VALUES_H_
