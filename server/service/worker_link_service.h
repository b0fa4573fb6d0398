// nibble.v1.WorkerLink on the wire: a stream per daemon. A report is read when what followed from
// the one before it is durable; the desired state is written after each report and whenever it
// changes, the newest one only: what was not sent yet is never queued. A stream on which nothing is
// said for as long as a lease ends with DEADLINE_EXCEEDED, one that never said anything too.
//
// Ownership: borrows the controller and the admission, which outlive every call. Thread-safety: as
// gRPC asks.
#ifndef NIBBLE_SERVER_SERVICE_WORKER_LINK_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_WORKER_LINK_SERVICE_H_

#include <memory>

#include "server/controller/controller.h"
#include "server/service/admission.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nibble {

std::unique_ptr<grpc::Service> MakeWorkerLinkService(Controller& controller, Admission& admission);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_WORKER_LINK_SERVICE_H_
