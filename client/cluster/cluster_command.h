// `nibble cluster up | down | status | certs`: a cluster on this machine.
//
// Ownership: the command line keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none; the command line is parsed once.
#ifndef NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_
#define NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_

#include "common/command_line/command_line.h"

namespace nibble {

// `exit_code` is set when a verb runs: 0 done, 1 error, 2 usage, 102 if the cluster or one of its
// programs does not exist.
void AddClusterCommand(Command app, int& exit_code);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_
