// What somebody who mistyped a name may have meant: for error messages.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_NEAR_NAME_H_
#define NIBBLE_COMMON_NEAR_NAME_H_

#include <span>
#include <string>
#include <string_view>

namespace nibble {

// The known name that is fewest edits (insert, delete, replace, swap of neighbours; letter case is
// free) from `given`, the first of equals. Near is up to a third of the known name's length, and at
// least one edit. Where none is, the first known name that begins with `given` (three characters
// or more), else "".
std::string NearestName(std::string_view given, std::span<const std::string> known);

}  // namespace nibble

#endif  // NIBBLE_COMMON_NEAR_NAME_H_
