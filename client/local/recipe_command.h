// `nibble recipe presets | fields | show | diff | cost`: recipes against models, before anything
// runs.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_LOCAL_RECIPE_COMMAND_H_
#define NIBBLE_CLIENT_LOCAL_RECIPE_COMMAND_H_

#include <CLI/CLI.hpp>

#include "client/local/take_over.h"

namespace nibble {

// Adds the subcommand to `app`. `exit_code` is set when it runs: 0 done, 1 error, 102 no such
// preset or model.
void AddRecipeCommand(CLI::App& app, int& exit_code);
// Likewise; each verb first asks `take_over`, with its first preset as the name.
void AddRecipeCommandWith(CLI::App& app, int& exit_code, TakeOver take_over);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_RECIPE_COMMAND_H_
