// Lines of a terminal whose parts have colours, and their bytes for terminals with and without
// colours and UTF-8.
//
// Thread-safety: values and pure functions.
#ifndef NIBBLE_CLIENT_REMOTE_STYLED_TEXT_H_
#define NIBBLE_CLIENT_REMOTE_STYLED_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace nibble {

enum class Ink : uint8_t {
  kPlain,
  kFaint,
  kStrong,
  kRed,
  kGreen,
  kYellow,
  kBlue,
  kMagenta,
  kCyan,
};

class StyledLine {
 public:
  StyledLine() = default;
  explicit StyledLine(absl::string_view text, Ink ink = Ink::kPlain) { Add(text, ink); }

  StyledLine& Add(absl::string_view text, Ink ink = Ink::kPlain);
  StyledLine& Append(const StyledLine& line);

  // Columns on a terminal.
  size_t width() const;
  // Shortens the line to `columns`; a cut is marked at the end, by "…" or, without `utf8`, "~".
  // Control characters become '?'.
  void Cut(size_t columns, bool utf8 = true);
  // Replaces characters beyond ASCII; the line may become wider.
  void FoldToAscii();
  // Without `colours` the text alone.
  std::string Text(bool colours) const;

 private:
  struct Span {
    Ink ink;
    std::string text;
  };
  std::vector<Span> spans_;  // neighbours differ in ink
};

// The first of the lines that fits into `columns`; the last one if none does. There is at least
// one.
StyledLine FirstFitting(const std::vector<StyledLine>& lines, size_t columns);

// "→" becomes "->", "…" "...", and other characters beyond ASCII '?'.
std::string AsciiText(absl::string_view utf8);

// The columns of a text that may have escape sequences for colours.
size_t WidthWithoutColours(absl::string_view text);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_STYLED_TEXT_H_
