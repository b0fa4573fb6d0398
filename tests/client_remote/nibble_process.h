// The nibble program as people run it: its lines as they come, and signals to it.
//
// Ownership: owns the process, which is killed where it still runs. Thread-safety: none.
#ifndef NIBBLE_TESTS_CLIENT_REMOTE_NIBBLE_PROCESS_H_
#define NIBBLE_TESTS_CLIENT_REMOTE_NIBBLE_PROCESS_H_

#include <sys/types.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "client/local/command_testing.h"

namespace nibble {

class NibbleProcess {
 public:
  // From its start to its end.
  static Outcome Run(const std::vector<std::string>& arguments);

  explicit NibbleProcess(const std::vector<std::string>& arguments) { Start(arguments, false); }
  // Its stdout is a terminal of 80 by 24.
  static std::unique_ptr<NibbleProcess> OnTerminal(const std::vector<std::string>& arguments);
  ~NibbleProcess();
  NibbleProcess(const NibbleProcess&) = delete;
  NibbleProcess& operator=(const NibbleProcess&) = delete;

  // The next line of stdout or stderr without its end; "" when it has ended. A process that says
  // nothing for a minute fails the test.
  std::string OutLine() { return Line(0); }
  std::string ErrLine() { return Line(1); }
  void Signal(int signal);
  // Of its terminal.
  void Resize(int columns, int rows);
  // The exit code, or 128 and the signal.
  int Wait();

 private:
  NibbleProcess() = default;
  void Start(const std::vector<std::string>& arguments, bool terminal);
  std::string Line(size_t stream);
  // Reads on; false at the end.
  bool More(size_t stream);

  pid_t child_ = -1;
  std::array<int, 2> pipes_ = {-1, -1};
  std::array<std::string, 2> read_;
};

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLIENT_REMOTE_NIBBLE_PROCESS_H_
