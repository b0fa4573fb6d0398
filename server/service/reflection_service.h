// gRPC's server reflection, v1 and v1alpha: what foreign clients read to call services whose
// .proto files they do not have. Answers come from the descriptors that are linked into the
// program. Every request is admitted as any other call is; an open stream costs no thread.
//
// Ownership: borrows the admission, which outlives every call. Thread-safety: as gRPC asks.
#ifndef NIBBLE_SERVER_SERVICE_REFLECTION_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_REFLECTION_SERVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "server/service/admission.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nibble {

// `services`: full names of those that the server has beside reflection itself.
std::unique_ptr<grpc::Service> MakeReflectionService(Admission& admission,
                                                     std::vector<std::string> services);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_REFLECTION_SERVICE_H_
