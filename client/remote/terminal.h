// The terminal of a verb that follows a job: Ctrl-C detaches, lines are redrawn in place, and keys
// are read as they are pressed.
//
// Ownership: an Interrupt owns the handlers of SIGINT and SIGTERM while it lives, and a thread. A
// second signal ends the process as usual. A Keyboard owns the mode of the terminal at standard
// input, and the handlers of SIGHUP, SIGQUIT, SIGTSTP and SIGCONT. Thread-safety: methods of
// Interrupt from any thread; only one Interrupt and one Keyboard at a time in a process; the rest
// are values.
#ifndef NIBBLE_CLIENT_REMOTE_TERMINAL_H_
#define NIBBLE_CLIENT_REMOTE_TERMINAL_H_

#include <signal.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/mutex.h"

namespace nibble {

// While it lives, the first SIGINT or SIGTERM sets happened() instead of ending the process.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool happened() const { return happened_; }
  // Sleeps for `pause`, or until happened().
  void SleepFor(absl::Duration pause);

  // Calls `then` once when happened() becomes true, on another thread and without a lock; on this
  // thread if happened() is true already. Its destructor waits for a running `then`; afterwards
  // `then` is not called. One Call at a time.
  class Call {
   public:
    Call(Interrupt& interrupt, std::function<void()> then);
    ~Call();

   private:
    Interrupt& interrupt_;
  };

 private:
  void Listen();

  std::array<int, 2> pipe_ = {-1, -1};
  struct sigaction before_int_ = {};
  struct sigaction before_term_ = {};
  std::atomic<bool> happened_ = false;
  Mutex mutex_;
  CondVar changed_;
  std::function<void()> then_ ABSL_GUARDED_BY(mutex_);
  bool calling_ ABSL_GUARDED_BY(mutex_) = false;  // Listen() runs `then`
  std::thread thread_;
};

// While it lives, keys arrive without Return and are not shown. The terminal gets its mode back
// when it ends, when a signal ends or suspends the process, and at once when an Interrupt happens;
// after a suspension keys are read again.
class Keyboard {
 public:
  Keyboard();
  ~Keyboard();
  Keyboard(const Keyboard&) = delete;
  Keyboard& operator=(const Keyboard&) = delete;

  // False if standard input is not a terminal, or the process is in the background.
  bool active() const { return active_; }
  // A key that was pressed; unset: none. Does not wait.
  std::optional<char> Read() const;

 private:
  bool active_ = false;
  std::array<struct sigaction, 4> before_ = {};
};

// Lines that are redrawn in place.
class Screen {
 public:
  // Returns the text that replaces the previous lines by `lines`, each narrower than `columns`
  // beside its escape sequences for colours, and leaves the cursor below them. If the terminal
  // became narrower, the old lines are wrapped over several rows, which are erased as well.
  std::string Draw(const std::vector<std::string>& lines, int columns);

 private:
  std::vector<size_t> widths_;  // of the lines on the screen
};

// The size of standard output; 80 by 24 if it is unknown.
struct TerminalSize {
  int columns = 80;
  int rows = 24;
  friend bool operator==(const TerminalSize&, const TerminalSize&) = default;
};
TerminalSize StdoutSize();
bool StdoutIsTerminal();
// Whether colours are welcome there: a terminal, and NO_COLOR (no-color.org) is not set.
bool StdoutHasColours();
// Whether the locale (LC_ALL, LC_CTYPE, LANG) says that text is UTF-8.
bool LocaleIsUtf8();

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_TERMINAL_H_
