// `nibble cluster up | down | status`: a whole cluster on this machine.
//
// Ownership: the app keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_
#define NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_

#include <CLI/CLI.hpp>

namespace nibble {

// Adds the subcommand to `app`. `exit_code` is set when it runs: 0 done, 1 error, 2 usage, 102
// where the cluster or a program of it is not there.
void AddClusterCommand(CLI::App& app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_
