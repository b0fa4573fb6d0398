// Counts the calls of a gRPC server with an interceptor, which sees each call's method and status
// and changes nothing.
//
// Ownership: the interceptor borrows the metrics, which outlive the server. Thread-safety: as gRPC
// requires.
#ifndef NIBBLE_SERVER_METRICS_RPC_METRICS_H_
#define NIBBLE_SERVER_METRICS_RPC_METRICS_H_

#include "server/controller/coordinator_metrics.h"

namespace grpc {
class ServerBuilder;
}  // namespace grpc

namespace nibble {

// Replaces interceptors that were set before.
void CountCalls(CoordinatorMetrics& metrics, grpc::ServerBuilder& builder);

}  // namespace nibble

#endif  // NIBBLE_SERVER_METRICS_RPC_METRICS_H_
