// What a cluster on this machine says of itself over the wire: whether it serves, its workers, its
// jobs; and the drains around an orderly end.
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
#include "grpcpp/channel.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"

namespace nibble {

class ClusterClient {
 public:
  explicit ClusterClient(const std::string& address);

  // Asks grpc.health.v1. False where nobody answers in time, or what answers does not serve.
  bool Serves(std::chrono::milliseconds patience);

  absl::StatusOr<std::vector<v1::Worker>> Workers();
  absl::StatusOr<std::map<v1::JobState, int64_t>> JobsByState();

  // What runs on the worker moves off through a checkpoint.
  absl::Status Drain(const std::string& worker, const std::string& reason);
  absl::Status Uncordon(const std::string& worker, const std::string& reason);

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_CLUSTER_CLUSTER_CLIENT_H_
