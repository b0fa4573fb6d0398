// nibble.v1.Coordinator on the wire: a thin shell that checks bounds, lets callers in, and passes
// on to the Controller. No rule of jobs is in it.
//
// Ownership: borrows the controller and the admission, which outlive every call. Thread-safety: as
// gRPC asks.
#ifndef NIBBLE_SERVER_SERVICE_COORDINATOR_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_COORDINATOR_SERVICE_H_

#include <cstdint>
#include <memory>

#include "server/controller/controller.h"
#include "server/service/admission.h"
#include "server/service/log_reactor.h"
#include "server/state/limits.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nibble {

struct ServiceLimits {
  int64_t spec_bytes = kMaxSpecBytes;  // of a job that is submitted; never above kMaxSpecBytes
  int64_t change_ms = 60'000;          // a change that is not durable by then is answered so
  LogLimits logs;
};

std::unique_ptr<grpc::Service> MakeCoordinatorService(Controller& controller, Admission& admission,
                                                      const ServiceLimits& limits);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_COORDINATOR_SERVICE_H_
