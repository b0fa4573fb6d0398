// For tests: runs one of the command line's verbs as main() does, and keeps what it said.
//
// Ownership: none kept. Thread-safety: none; stdout and stderr are the process's.
#ifndef NIBBLE_CLIENT_LOCAL_COMMAND_TESTING_H_
#define NIBBLE_CLIENT_LOCAL_COMMAND_TESTING_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace nibble {

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

// `add` is one of Add…Command; `arguments` are those behind "nibble".
Outcome RunCommand(const std::function<void(CLI::App& app, int& exit_code)>& add,
                   const std::vector<std::string>& arguments);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_COMMAND_TESTING_H_
