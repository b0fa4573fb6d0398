#include "client/remote/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/remote/text.h"

namespace nibble {

std::string Screen::Draw(const std::vector<std::string>& lines, int columns) {
  const auto wide = static_cast<size_t>(std::max(1, columns));
  size_t rows = 0;
  for (const size_t width : widths_) rows += std::max<size_t>(1, (width + wide - 1) / wide);
  std::string out = "\r";
  if (rows > 0) absl::StrAppend(&out, "\x1b[", rows, "A");
  widths_.clear();
  for (const std::string& line : lines) {
    // To the end of the line, nothing.
    absl::StrAppend(&out, line, "\x1b[K\n");
    widths_.push_back(WidthOf(line));
  }
  // To the end of the screen, nothing.
  return absl::StrCat(out, "\x1b[J");
}

TerminalSize StdoutSize() {
  struct winsize size = {};
  TerminalSize found;
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return found;
  if (size.ws_col > 0) found.columns = size.ws_col;
  if (size.ws_row > 0) found.rows = size.ws_row;
  return found;
}

bool StdoutIsTerminal() {
  const char* const kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (kind == nullptr || std::strcmp(kind, "dumb") != 0);
}

}  // namespace nibble
