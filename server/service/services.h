// The services of nibble.v1 on the wire. Each call is admitted first (admitted_service.h).
//
// Coordinator checks bounds and passes requests on to the Controller; it has no rules about jobs.
//
// Access makes, lists and revokes tokens.
//
// WorkerLink has one stream per daemon. A report is read once the effects of the previous one are
// durable. The desired state is written after each report and whenever it changes; only the newest
// one is sent, older unsent ones are dropped. A stream that is silent for the length of a lease,
// from its beginning or later, ends with DEADLINE_EXCEEDED.
//
// Ownership: the services borrow the controller and the admission, which outlive every call.
// Thread-safety: as gRPC requires.
#ifndef NIBBLE_SERVER_SERVICE_SERVICES_H_
#define NIBBLE_SERVER_SERVICE_SERVICES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "server/service/log_reactor.h"
#include "server/service/open_changes.h"
#include "server/service/worker_addresses.h"
#include "server/state/limits.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nibble {

class Admission;
class Controller;
class Credentials;
namespace v1 {
class WorkerIdentity;
}  // namespace v1

struct ServiceLimits {
  int64_t spec_bytes = kMaxSpecBytes;  // of a submitted job; never above kMaxSpecBytes
  int64_t change_ms = 60'000;          // a change not durable by then gets DEADLINE_EXCEEDED
  LogLimits logs;
};

// `to_workers`: of the channels to workers, whose logs it reads; `logs`: its streams of them;
// `changes`: those that it has not answered.
std::unique_ptr<grpc::Service> MakeCoordinatorService(Controller& controller, Admission& admission,
                                                      const ServiceLimits& limits,
                                                      std::shared_ptr<const Credentials> to_workers,
                                                      OpenStreams logs,
                                                      std::shared_ptr<OpenChanges> changes);

std::unique_ptr<grpc::Service> MakeAccessService(Admission& admission);

std::unique_ptr<grpc::Service> MakeWorkerLinkService(Controller& controller, Admission& admission,
                                                     WorkerAddresses addresses);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_SERVICES_H_
