#include "client/local/command_testing.h"

#include "client/local/exit_code.h"
#include "gtest/gtest.h"

namespace nibble {

Outcome RunCommand(const std::function<void(CLI::App& app, int& exit_code)>& add,
                   const std::vector<std::string>& arguments) {
  CLI::App app("test", "nibble");
  app.require_subcommand(1);
  Outcome outcome;
  add(app, outcome.exit_code);
  std::vector<const char*> argv = {"nibble"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ParseError& error) {
    outcome.exit_code = app.exit(error) == 0 ? kExitDone : kExitUsage;
  }
  outcome.out = testing::internal::GetCapturedStdout();
  outcome.err = testing::internal::GetCapturedStderr();
  return outcome;
}

}  // namespace nibble
