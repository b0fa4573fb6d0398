#include "client/remote/terminal.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <chrono>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/text/text.h"

namespace nibble {
namespace {

// The write end of the pipe; a signal handler has no context argument.
std::atomic<int> written_to = -1;

void OnSignal(int) {
  const int saved = errno;
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
    widths_.push_back(WidthOf(line));
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

}  // namespace nibble
