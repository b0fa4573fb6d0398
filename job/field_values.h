// What a field of a spec can hold: how it is read from a YAML node, written, checked and described.
// One text of each: every message about a wrong value is made here.
//
// Readers add a problem and leave the value alone where the node is of another type. Ranges are not
// theirs: Check functions look at values, wherever these come from.
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

// [least, most], without the ends that are open.
template <class T>
struct Range {
  T least;
  T most;
  bool above_least = false;
  bool below_most = false;

  // Nothing holds NaN.
  bool Holds(T value) const {
    return (above_least ? value > least : value >= least) &&
           (below_most ? value < most : value <= most);
  }
};

std::string ValueText(int64_t value);
std::string ValueText(uint64_t value);
// The shortest text that reads back as the same value, and as a number in every YAML reader.
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

// Names and texts of a map; a number or a word is its text.
void ReadTexts(const YamlNode& node, const std::string& path, std::vector<NamedText>& value,
               Problems& problems);
YamlNode WriteTexts(const std::vector<NamedText>& texts);

YamlNode WriteSettings(const std::vector<FieldSetting>& settings);

template <class T>
void CheckRange(T value, const std::string& path, const Range<T>& range, Problems& problems) {
  if (range.Holds(value)) return;
  problems.Add(path, ValueText(value) + " is not in " + RangeText(range));
}
void CheckText(std::string_view value, const std::string& path, const TextRule& rule,
               Problems& problems);
// Fields and values that recipes know; none set twice.
void CheckSettings(const std::vector<FieldSetting>& settings, const std::string& path,
                   Problems& problems);
void CheckCount(size_t count, const std::string& path, const Range<int64_t>& range,
                Problems& problems);

// "'abc'", "a list": what stands where something else belongs. Long texts are cut.
std::string Shown(const YamlNode& node);
// A key for a path, escaped and cut likewise.
std::string ShownName(std::string_view name);

// The keys of a map against the fields of a record: which is which, which are unknown, which are
// there twice.
//
// Ownership: what is returned borrows the nodes. Thread-safety: pure functions.

// "a.b", or "b" at the top.
std::string JoinPath(std::string_view path, std::string_view name);

// For each name the node given for it, or null. A scalar stands for the field `shorthand`, where
// that is not empty; nothing at all for a map without keys. Empty, with a problem, where the node
// is none of these.
std::vector<const YamlNode*> MatchKeys(const YamlNode& node, const std::string& path,
                                       const std::vector<std::string>& names,
                                       const std::string& shorthand, Problems& problems);

// A list of so many entries, or nothing (no entries). Adds a problem where it is not.
bool IsListOf(const YamlNode& node, const std::string& path, const Range<int64_t>& count,
              Problems& problems);

}  // namespace nibble

#endif  // NIBBLE_JOB_FIELD_VALUES_H_
