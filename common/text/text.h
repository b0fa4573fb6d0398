// Numbers, durations and times as people read them, and text that fits the columns of a terminal.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_COMMON_TEXT_TEXT_H_
#define NIBBLE_COMMON_TEXT_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace nibble {

// "59s", "2m05s", "1h02m", "3d04h"; negative durations count as 0.
std::string DurationText(double seconds);
// "12.3k", "9.99M"
std::string CountText(double value);
// "1.5 GB", in powers of 1000.
std::string BytesText(int64_t bytes);
// "2026-03-01 12:00:00", UTC; "-" for 0.
std::string TimeText(int64_t unix_ms);
// "2m05s ago"; "-" for 0.
std::string AgoText(int64_t unix_ms, int64_t now_unix_ms);

// The columns that the text takes on a terminal: one per character, none for combining marks.
size_t WidthOf(absl::string_view utf8);
// The first `columns` columns of the text; a cut is marked with "…" at the end. Control characters,
// which could move the cursor, become '?'.
std::string Fit(absl::string_view utf8, size_t columns);

// The whole text in lines of at most `columns` columns, broken at spaces where possible, and at
// line feeds. Lines after the first are indented by `indent` spaces. Control characters as in
// Fit().
std::vector<std::string> Wrap(absl::string_view utf8, size_t columns, size_t indent);
// The whole text on one line: each line feed, with the spaces around it, becomes one space.
std::string OnOneLine(absl::string_view utf8);

}  // namespace nibble

#endif  // NIBBLE_COMMON_TEXT_TEXT_H_
