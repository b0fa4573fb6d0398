// Every verb of the command line that speaks to a coordinator but those of checkpoints, which
// client/remote/checkpoint_verbs.h adds to local ones.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none, as CLI::App.
#ifndef NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_
#define NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_

#include <CLI/CLI.hpp>

namespace nibble {

// `exit_code` is set when one runs: 0 done, 1 error, 100 the job failed, 101 it is not finished,
// 102 there is no such thing, 103 the job was cancelled. The recipe noun is made whole, with its
// local verbs; local verbs of job stay.
void AddRemoteCommands(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_REMOTE_COMMANDS_H_
