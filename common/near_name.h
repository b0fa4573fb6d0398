// Suggestions for mistyped names, for error messages.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_NEAR_NAME_H_
#define NIBBLE_COMMON_NEAR_NAME_H_

#include <span>
#include <string>
#include <string_view>

namespace nibble {

// The known name with the fewest edits (insert, delete, replace, swap neighbours; letter case does
// not count) from `given`; of several, the first. Allowed are edits up to a third of the known
// name's length, and at least one. If no name is that near, the first known name that begins with
// `given` (three characters or more), else "".
std::string NearestName(std::string_view given, std::span<const std::string> known);

}  // namespace nibble

#endif  // NIBBLE_COMMON_NEAR_NAME_H_
