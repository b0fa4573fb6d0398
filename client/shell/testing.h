// For tests: runs verbs of the command line as main() does, and reads YAML.
//
// Ownership: none kept. Thread-safety: none; stdout and stderr are the process's.
#ifndef NIBBLE_CLIENT_SHELL_TESTING_H_
#define NIBBLE_CLIENT_SHELL_TESTING_H_

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "common/command_line/command_line.h"

namespace nibble {

struct Outcome {
  int exit_code = -1;
  std::string out, err;
};

// Runs the command that `add`, a noun, with these words behind "nibble", and
// captures its output.
Outcome RunCommand(const std::function<void(Command app, int& exit_code)>& add,
                   const std::vector<std::string>& arguments);

// Parses YAML with yaml-cpp. Unquoted scalars that are JSON values (7, true, null) become those.
nlohmann::ordered_json JsonOfYaml(const std::string& yaml);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_TESTING_H_
