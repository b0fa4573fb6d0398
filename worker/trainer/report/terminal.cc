#include "worker/trainer/report/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace nibble {

constexpr int kUsualColumns = 80;

bool IsTerminal(int file) { return isatty(file) == 1; }

int TerminalColumns(int file) {
  struct winsize size = {};
  if (ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsualColumns;
  return size.ws_col;
}

}  // namespace nibble
