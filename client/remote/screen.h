// Lines that are drawn anew in place on a terminal, whatever size it has by then.
//
// Ownership: values. Thread-safety: none.
#ifndef NIBBLE_CLIENT_REMOTE_SCREEN_H_
#define NIBBLE_CLIENT_REMOTE_SCREEN_H_

#include <cstddef>
#include <string>
#include <vector>

namespace nibble {

class Screen {
 public:
  // What to write so that `lines`, each narrower than `columns`, stand where those of the call
  // before stood; the cursor is then below them. A terminal that has become narrower has broken
  // the old lines over several rows, which go too.
  std::string Draw(const std::vector<std::string>& lines, int columns);

 private:
  std::vector<size_t> widths_;  // of the lines that stand there
};

// Of standard output; 80 by 24 where it does not know.
struct TerminalSize {
  int columns = 80;
  int rows = 24;
  friend bool operator==(const TerminalSize&, const TerminalSize&) = default;
};
TerminalSize StdoutSize();
bool StdoutIsTerminal();

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_SCREEN_H_
