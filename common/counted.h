// A count with its noun: "1 rank", "2 ranks".
//
// Thread-safety: a pure function.
#ifndef NIBBLE_COMMON_COUNTED_H_
#define NIBBLE_COMMON_COUNTED_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace nibble {

// For nouns whose plural is formed with s.
inline std::string Counted(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

}  // namespace nibble

#endif  // NIBBLE_COMMON_COUNTED_H_
