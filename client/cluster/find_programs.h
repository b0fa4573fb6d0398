// Where the programs of a cluster are: beside this one, as they are installed, or where Bazel
// builds them.
//
// Ownership: none kept. Thread-safety: pure functions of the disk.
#ifndef NIBBLE_CLIENT_CLUSTER_FIND_PROGRAMS_H_
#define NIBBLE_CLIENT_CLUSTER_FIND_PROGRAMS_H_

#include <string>

#include "absl/status/statusor.h"
#include "client/cluster/local_cluster.h"

namespace nibble {

// Paths of `said` that are not empty are taken as they are. NotFound names the program and where it
// was looked for. `self`: path of the running program.
absl::StatusOr<ClusterPrograms> FindPrograms(const ClusterPrograms& said, const std::string& self);

// Of this process.
std::string SelfPath();

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_FIND_PROGRAMS_H_
