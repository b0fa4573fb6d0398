// `nibble model presets | show MODEL`: what models there are, and what one is and takes.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_LOCAL_MODEL_COMMAND_H_
#define NIBBLE_CLIENT_LOCAL_MODEL_COMMAND_H_

#include <CLI/CLI.hpp>

namespace nibble {

// Adds the subcommand to `app`. `exit_code` is set when it runs: 0 done, 1 error, 102 no such
// model.
void AddModelCommand(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_MODEL_COMMAND_H_
