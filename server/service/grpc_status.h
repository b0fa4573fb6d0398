// From the statuses of the coordinator to those on the wire: the codes are the same numbers, and
// programs find in the details (google.rpc.Status in grpc-status-details-bin)
//   BadRequest  of INVALID_ARGUMENT: the fields, by their paths
//   ErrorInfo   always: a reason, the domain "nibble.v1", and the field where one is named
//   RetryInfo   of UNAVAILABLE, and wherever SetRetryAfter was called: when to repeat the call
//
// The fields are those that messages begin with, as all of them do that are about one: "FIELD: …",
// and of job specs "line 3: FIELD: …", one a line.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_SERVER_SERVICE_GRPC_STATUS_H_
#define NIBBLE_SERVER_SERVICE_GRPC_STATUS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace nibble {

inline constexpr char kErrorDomain[] = "nibble.v1";

// Messages longer than what a header can carry are cut, details that do not fit beside them are
// left out.
grpc::Status ToGrpc(const absl::Status& status);

// The same call may succeed after this time.
absl::Status RetryAfter(absl::Status status, int64_t retry_ms);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_GRPC_STATUS_H_
