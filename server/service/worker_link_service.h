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
#include <string>

#include "absl/status/status.h"
#include "proto/nibble/v1/worker.pb.h"
#include "server/controller/controller.h"
#include "server/service/admission.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nibble {

// InvalidArgument naming the field where the identity's addresses are not host:port of one host, or
// are loopback of another machine than the coordinator's. `peer`: the worker's, as PeerHost has it.
absl::Status CheckAddresses(const v1::WorkerIdentity& identity, const std::string& peer);

std::unique_ptr<grpc::Service> MakeWorkerLinkService(Controller& controller, Admission& admission);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_WORKER_LINK_SERVICE_H_
