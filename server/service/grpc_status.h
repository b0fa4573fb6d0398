// Between the statuses of the coordinator and those on the wire: the codes are the same numbers.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SERVICE_GRPC_STATUS_H_
#define NIBBLE_SERVER_SERVICE_GRPC_STATUS_H_

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace nibble {

// Messages longer than what a header can carry are cut.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_GRPC_STATUS_H_
