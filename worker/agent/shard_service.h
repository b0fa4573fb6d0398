// Serves the shards that are held here to other workers (nibble.v1.ShardStore): the tensor bytes of
// a shard, slice after slice, in the order of its manifest. Nothing is sent that does not have its
// checksum. A shard is served as soon as it is sealed.
//
// Ownership: the service borrows the desk. Thread-safety: calls are served by gRPC's threads.
#ifndef NIBBLE_WORKER_AGENT_SHARD_SERVICE_H_
#define NIBBLE_WORKER_AGENT_SHARD_SERVICE_H_

#include <memory>
#include <string>

#include "grpcpp/grpcpp.h"
#include "worker/agent/checkpoint_desk.h"

namespace nibble {

// `worker`: this worker's name, which every answer carries (kShardHolderKey), so that a reader that
// meets damage can tell whose copy it is; empty: it does not say.
std::unique_ptr<grpc::Service> MakeShardService(const CheckpointDesk& desk, std::string worker);

// Of the metadata that every answer begins with.
inline constexpr char kShardHolderKey[] = "nibble-worker";

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_SHARD_SERVICE_H_
