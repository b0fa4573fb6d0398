// WatchJobs, a stream of changes to jobs, and WaitJob, a call that is answered when a job reaches a
// state.
//
// Ownership: borrows the controller, which outlives every call. Thread-safety: as gRPC requires.
#ifndef NIBBLE_SERVER_SERVICE_WATCH_REACTOR_H_
#define NIBBLE_SERVER_SERVICE_WATCH_REACTOR_H_

#include <memory>

#include "absl/status/status.h"
#include "server/controller/project_view.h"

namespace grpc {
class CallbackServerContext;
class ServerUnaryReactor;
template <class Response>
class ServerWriteReactor;
}  // namespace grpc

namespace nibble {

class Controller;
class OpenCall;
namespace v1 {
class WaitJobRequest;
class WaitJobResponse;
class WatchJobsRequest;
class WatchJobsResponse;
}  // namespace v1

// The stream that serves the request; ends at once with `refused` unless that is OK. Keeps `place`
// until it is over, and ends with it. `view`: what the caller sees.
grpc::ServerWriteReactor<v1::WatchJobsResponse>* StreamWatch(grpc::CallbackServerContext& context,
                                                             Controller& controller,
                                                             const v1::WatchJobsRequest& request,
                                                             ProjectView view,
                                                             const absl::Status& refused,
                                                             std::shared_ptr<OpenCall> place);

// The call that fills the response. `view`, `refused` and `place`: as above.
grpc::ServerUnaryReactor* AwaitJob(Controller& controller, const v1::WaitJobRequest& request,
                                   ProjectView view, v1::WaitJobResponse& response,
                                   const absl::Status& refused, std::shared_ptr<OpenCall> place);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_WATCH_REACTOR_H_
