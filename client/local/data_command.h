// `nibble data tokenize | inspect | verify`: text to token shards, and a look into token files.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_LOCAL_DATA_COMMAND_H_
#define NIBBLE_CLIENT_LOCAL_DATA_COMMAND_H_

#include <CLI/CLI.hpp>

namespace nibble {

// Adds the subcommand to `app`. `exit_code` is set when it runs: 0 done, 1 error, 102 no such file.
// Results go to stdout, progress and errors to stderr.
void AddDataCommand(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_LOCAL_DATA_COMMAND_H_
