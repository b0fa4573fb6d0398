// Calls to the coordinator of a cluster on this machine: whether it serves, its workers and jobs,
// and the drains around an orderly shutdown.
//
// Ownership: owns its channel. Thread-safety: all methods.
#ifndef NIBBLE_CLIENT_CLUSTER_CLUSTER_CLIENT_H_
#define NIBBLE_CLIENT_CLUSTER_CLUSTER_CLIENT_H_

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/nibble/v1/job.pb.h"
#include "proto/nibble/v1/worker.pb.h"

namespace nibble {

class ClusterClient {
 public:
  explicit ClusterClient(const std::string& address);
  ~ClusterClient();

  // Calls grpc.health.v1. False if there is no answer in time or the server does not serve.
  bool Serves(std::chrono::milliseconds patience);

  absl::StatusOr<std::vector<v1::Worker>> Workers();
  absl::StatusOr<std::map<v1::JobState, int64_t>> JobsByState();

  // The worker's jobs are checkpointed and moved elsewhere.
  absl::Status Drain(const std::string& worker, const std::string& reason);
  absl::Status Uncordon(const std::string& worker, const std::string& reason);

 private:
  struct Connection;

  const std::unique_ptr<Connection> connection_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_CLUSTER_CLIENT_H_
