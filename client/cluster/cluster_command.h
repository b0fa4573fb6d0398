// `nibble cluster up | down | status`: a cluster on this machine, its state as text, and the paths
// of its programs.
//
// Ownership: the command line keeps the verbs and their flags; `exit_code` outlives it.
// Thread-safety: none for the command, which is parsed once; the rest reads the disk.
#ifndef NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_
#define NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cluster/local_cluster.h"
#include "common/command_line/command_line.h"

namespace nibble {

// `exit_code` is set when a verb runs: 0 done, 1 error, 2 usage, 102 if the cluster or one of its
// programs does not exist.
void AddClusterCommand(Command app, int& exit_code);

// Both end with a newline.
std::string ClusterTable(const LocalCluster::Status& status, int64_t now_unix_ms);
std::string ClusterJson(const LocalCluster::Status& status, int64_t now_unix_ms);

// Searches beside `self`, the path of the running program, and where Bazel builds the programs.
// Non-empty paths of `given` are used as they are. NotFound names the program and the places
// searched.
absl::StatusOr<ClusterPrograms> FindPrograms(const ClusterPrograms& given, const std::string& self);

// The path of this process's program.
std::string SelfPath();

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_CLUSTER_COMMAND_H_
