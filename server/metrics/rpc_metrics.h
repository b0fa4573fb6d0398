// Counts the calls of a gRPC server: an interceptor that sees each call's method and how it ends,
// and changes nothing.
//
// Ownership: the factory borrows the metrics, which outlive the server. Thread-safety: as gRPC
// asks.
#ifndef NIBBLE_SERVER_METRICS_RPC_METRICS_H_
#define NIBBLE_SERVER_METRICS_RPC_METRICS_H_

#include "server/metrics/coordinator_metrics.h"

namespace grpc {
class ServerBuilder;
}  // namespace grpc

namespace nibble {

// Takes the place of interceptors that were set before.
void CountCalls(CoordinatorMetrics& metrics, grpc::ServerBuilder& builder);

}  // namespace nibble

#endif  // NIBBLE_SERVER_METRICS_RPC_METRICS_H_
