// The verbs about jobs and recipes that need no cluster and no worker: they read specs and presets.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it. Thread-safety: none.
#ifndef NIBBLE_CLIENT_SHELL_SPEC_COMMANDS_H_
#define NIBBLE_CLIENT_SHELL_SPEC_COMMANDS_H_

#include "client/shell/command_line.h"
#include "common/command_line/command_line.h"

namespace nibble {

// `nibble job show-defaults | validate`. An invalid spec is an error.
void AddJobCommand(Command app, int& exit_code);

// `nibble recipe presets | fields | show | diff | cost`, of presets. Every verb first offers
// itself to `take_over`, with its first preset as the name.
void AddRecipeCommandWith(Command app, int& exit_code, TakeOver take_over);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_SHELL_SPEC_COMMANDS_H_
