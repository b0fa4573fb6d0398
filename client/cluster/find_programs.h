// Where the programs of a cluster are.
//
// Ownership: values. Thread-safety: functions of the disk.
#ifndef NIBBLE_CLIENT_CLUSTER_FIND_PROGRAMS_H_
#define NIBBLE_CLIENT_CLUSTER_FIND_PROGRAMS_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/cluster/local_cluster.h"

namespace nibble {

// Searches beside `self`, the path of the running program, and where Bazel builds the programs.
// Non-empty paths of `given` are used as they are. NotFound names the program and the places
// searched.
absl::StatusOr<ClusterPrograms> FindPrograms(const ClusterPrograms& given, const std::string& self);

// The path of this process's program.
std::string SelfPath();

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_FIND_PROGRAMS_H_
