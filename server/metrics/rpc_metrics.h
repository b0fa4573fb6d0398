// Counts the calls of a gRPC server with an interceptor, which sees each call's peer, method and
// status and changes nothing.
//
// Ownership: the interceptor borrows the metrics, which outlive the server. Thread-safety: as gRPC
// requires.
#ifndef NIBBLE_SERVER_METRICS_RPC_METRICS_H_
#define NIBBLE_SERVER_METRICS_RPC_METRICS_H_

#include <functional>

#include "server/controller/coordinator_metrics.h"

namespace grpc {
class ServerBuilder;
class ServerContextBase;
}  // namespace grpc

namespace nibble {

// `called` gets the context of each call when it begins. Replaces interceptors that were set
// before.
void CountCalls(CoordinatorMetrics& metrics,
                std::function<void(const grpc::ServerContextBase&)> called,
                grpc::ServerBuilder& builder);

}  // namespace nibble

#endif  // NIBBLE_SERVER_METRICS_RPC_METRICS_H_
