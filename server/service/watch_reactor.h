// WatchJobs: a stream of changes.
//
// Ownership: borrows the controller, which outlives every call. Thread-safety: as gRPC asks.
#ifndef NIBBLE_SERVER_SERVICE_WATCH_REACTOR_H_
#define NIBBLE_SERVER_SERVICE_WATCH_REACTOR_H_

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/controller.h"

namespace nibble {

// The stream that serves the request; ends at once with `refused` where that is not OK.
grpc::ServerWriteReactor<v1::WatchJobsResponse>* StreamWatch(Controller& controller,
                                                             const v1::WatchJobsRequest& request,
                                                             const absl::Status& refused);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_WATCH_REACTOR_H_
