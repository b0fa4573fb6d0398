// The state of a cluster as text.
//
// Ownership: values. Thread-safety: pure functions.
#ifndef NIBBLE_CLIENT_CLUSTER_CLUSTER_REPORT_H_
#define NIBBLE_CLIENT_CLUSTER_CLUSTER_REPORT_H_

#include <cstdint>
#include <string>

#include "client/cluster/local_cluster.h"

namespace nibble {

// Both end with a newline.
std::string ClusterTable(const LocalCluster::Status& status, int64_t now_unix_ms);
std::string ClusterJson(const LocalCluster::Status& status, int64_t now_unix_ms);

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_CLUSTER_REPORT_H_
