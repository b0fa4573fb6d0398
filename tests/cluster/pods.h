// For tests: what Kubernetes does to the pods of deploy/kubernetes, done to the processes of a bed:
// the scripts of their hooks, SIGTERM, and as much time as the pods have.
//
// Ownership: none. Thread-safety: as that of the bed.
#ifndef NIBBLE_TESTS_CLUSTER_PODS_H_
#define NIBBLE_TESTS_CLUSTER_PODS_H_

#include <string>

#include "tests/cluster/cluster_bed.h"

namespace nibble {

// A worker's pod drains first (hooks/drain.sh). Returns when the process has ended; a test failure
// if the hook fails, or the process needs longer than its pod has.
void StopPod(ClusterBed& bed, const std::string& role);
// Returns when the process is ready. A worker's pod is made schedulable (hooks/return.sh).
void StartPod(ClusterBed& bed, const std::string& role);

}  // namespace nibble

#endif  // NIBBLE_TESTS_CLUSTER_PODS_H_
