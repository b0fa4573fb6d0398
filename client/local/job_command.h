// `nibble job show-defaults | validate`: what needs no cluster of what can be done with job specs.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_LOCAL_JOB_COMMAND_H_
#define NIBBLE_CLIENT_LOCAL_JOB_COMMAND_H_

#include <CLI/CLI.hpp>

namespace nibble {

// Adds the subcommand to `app`. `exit_code` is set when it runs: 0 done, 1 error (a spec that is
// not valid), 102 no such file.
void AddJobCommand(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_JOB_COMMAND_H_
