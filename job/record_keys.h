// The keys of a map against the fields of a record: which is which, which are unknown, which are
// there twice.
//
// Ownership: what is returned borrows the nodes. Thread-safety: pure functions.
#ifndef NIBBLE_JOB_RECORD_KEYS_H_
#define NIBBLE_JOB_RECORD_KEYS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "job/field_values.h"
#include "job/problems.h"
#include "job/yaml_tree.h"

namespace nibble {

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

#endif  // NIBBLE_JOB_RECORD_KEYS_H_
