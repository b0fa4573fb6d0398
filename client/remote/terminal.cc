#include "client/remote/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <chrono>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/remote/styled_text.h"

namespace nibble {
namespace {

// The write end of the pipe; a signal handler has no context argument.
std::atomic<int> written_to = -1;

// The modes of the terminal at standard input, and whether `keys_mode` is set there.
struct termios usual_mode = {};
struct termios keys_mode = {};
std::atomic<bool> keys_on = false;

// Safe in signal handlers, as the functions below.
void LeaveKeysMode() {
  if (keys_on.exchange(false)) tcsetattr(STDIN_FILENO, TCSANOW, &usual_mode);
}

// A process in the background would be stopped if it changed the mode.
bool InForeground() {
  const pid_t foreground = tcgetpgrp(STDIN_FILENO);
  return foreground < 0 || foreground == getpgrp();
}

void EnterKeysMode() {
  if (InForeground() && tcsetattr(STDIN_FILENO, TCSANOW, &keys_mode) == 0) keys_on = true;
}

constexpr std::array<int, 4> kKeyboardSignals = {SIGHUP, SIGQUIT, SIGTSTP, SIGCONT};

void OnKeyboardSignal(int signal) {
  const int saved = errno;
  if (signal == SIGCONT) {
    EnterKeysMode();
  } else {
    LeaveKeysMode();
    // The handler of SIGHUP and SIGQUIT is the default again.
    raise(signal == SIGTSTP ? SIGSTOP : signal);
  }
  errno = saved;
}

void OnSignal(int) {
  const int saved = errno;
  LeaveKeysMode();
  const char byte = 's';
  // The pipe has room for thousands of signals, so the write does not block.
  if (write(written_to, &byte, 1) < 0) {
  }
  errno = saved;
}

}  // namespace

Interrupt::Interrupt() {
  // Without a pipe Ctrl-C ends the process as usual.
  if (pipe2(pipe_.data(), O_CLOEXEC) != 0) return;
  written_to = pipe_[1];
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, &before_int_);
  sigaction(SIGTERM, &action, &before_term_);
  thread_ = std::thread([this] { Listen(); });
}

Interrupt::~Interrupt() {
  if (!thread_.joinable()) return;
  sigaction(SIGINT, &before_int_, nullptr);
  sigaction(SIGTERM, &before_term_, nullptr);
  const char byte = 'q';
  if (write(pipe_[1], &byte, 1) == 1) thread_.join();
  close(pipe_[0]);
  close(pipe_[1]);
}

void Interrupt::Listen() {
  char byte = 0;
  while (true) {
    const ssize_t got = read(pipe_[0], &byte, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got != 1 || byte == 'q') return;
    std::function<void()> then;
    {
      MutexLock lock(&mutex_);
      if (happened_.exchange(true)) continue;
      then = std::exchange(then_, nullptr);
      calling_ = true;
      changed_.SignalAll();
    }
    if (then) then();
    MutexLock lock(&mutex_);
    calling_ = false;
    changed_.SignalAll();
  }
}

void Interrupt::SleepFor(absl::Duration pause) {
  const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(pause);
  MutexLock lock(&mutex_);
  while (!happened_ && !changed_.WaitUntil(&mutex_, end)) {
  }
}

Interrupt::Call::Call(Interrupt& interrupt, std::function<void()> then) : interrupt_(interrupt) {
  {
    MutexLock lock(&interrupt.mutex_);
    if (!interrupt.happened_) {
      interrupt.then_ = std::move(then);
      return;
    }
  }
  then();
}

Interrupt::Call::~Call() {
  MutexLock lock(&interrupt_.mutex_);
  interrupt_.then_ = nullptr;
  while (interrupt_.calling_) interrupt_.changed_.Wait(&interrupt_.mutex_);
}

Keyboard::Keyboard() {
  if (isatty(STDIN_FILENO) != 1 || !InForeground() || tcgetattr(STDIN_FILENO, &usual_mode) != 0) {
    return;
  }
  keys_mode = usual_mode;
  // Signals of keys, such as Ctrl-C, stay.
  keys_mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  keys_mode.c_cc[VMIN] = 0;
  keys_mode.c_cc[VTIME] = 0;
  for (size_t i = 0; i < kKeyboardSignals.size(); ++i) {
    struct sigaction action = {};
    action.sa_handler = OnKeyboardSignal;
    const bool ends = kKeyboardSignals[i] == SIGHUP || kKeyboardSignals[i] == SIGQUIT;
    action.sa_flags = SA_RESTART | (ends ? static_cast<int>(SA_RESETHAND) : 0);
    sigaction(kKeyboardSignals[i], &action, &before_[i]);
  }
  active_ = true;
  EnterKeysMode();
}

Keyboard::~Keyboard() {
  if (!active_) return;
  LeaveKeysMode();
  for (size_t i = 0; i < kKeyboardSignals.size(); ++i) {
    sigaction(kKeyboardSignals[i], &before_[i], nullptr);
  }
}

std::optional<char> Keyboard::Read() const {
  char key = 0;
  if (!keys_on || read(STDIN_FILENO, &key, 1) != 1) return std::nullopt;
  return key;
}

std::string Screen::Draw(const std::vector<std::string>& lines, int columns) {
  const auto wide = static_cast<size_t>(std::max(1, columns));
  size_t rows = 0;
  for (const size_t width : widths_) rows += std::max<size_t>(1, (width + wide - 1) / wide);
  std::string out = "\r";
  if (rows > 0) absl::StrAppend(&out, "\x1b[", rows, "A");
  widths_.clear();
  for (const std::string& line : lines) {
    // Erase to the end of the line.
    absl::StrAppend(&out, line, "\x1b[K\n");
    widths_.push_back(WidthWithoutColours(line));
  }
  // Erase to the end of the screen.
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

bool StdoutHasColours() {
  const char* const refused = std::getenv("NO_COLOR");
  return StdoutIsTerminal() && (refused == nullptr || *refused == '\0');
}

bool LocaleIsUtf8() {
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string lower = absl::AsciiStrToLower(value);
    return absl::StrContains(lower, "utf-8") || absl::StrContains(lower, "utf8");
  }
  return false;
}

}  // namespace nibble
