// `nibble checkpoint list | describe | verify | pin | unpin | delete | export | import`: what can
// be done with the checkpoints of a run on this machine.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_LOCAL_CHECKPOINT_COMMAND_H_
#define NIBBLE_CLIENT_LOCAL_CHECKPOINT_COMMAND_H_

#include <CLI/CLI.hpp>

#include "client/local/take_over.h"

namespace nibble {

// Adds the subcommand to `app`. `exit_code` is set when it runs: 0 done, 1 error (damaged bytes
// among them), 102 no such store or step.
void AddCheckpointCommand(CLI::App& app, int& exit_code);
// Likewise; each verb but import first asks `take_over`, with what it is given as the name.
void AddCheckpointCommandWith(CLI::App& app, int& exit_code, const TakeOver& take_over);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_CHECKPOINT_COMMAND_H_
