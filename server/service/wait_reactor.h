// WaitJob: an answer that waits for a job.
//
// Ownership: borrows the controller, which outlives every call. Thread-safety: as gRPC asks.
#ifndef NIBBLE_SERVER_SERVICE_WAIT_REACTOR_H_
#define NIBBLE_SERVER_SERVICE_WAIT_REACTOR_H_

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/controller.h"

namespace nibble {

// The call that fills the response; ends at once with `refused` where that is not OK.
grpc::ServerUnaryReactor* AwaitJob(Controller& controller, const v1::WaitJobRequest& request,
                                   v1::WaitJobResponse& response, const absl::Status& refused);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_WAIT_REACTOR_H_
