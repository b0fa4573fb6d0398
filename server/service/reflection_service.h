// gRPC's server reflection, v1 and v1alpha, for clients that do not have the .proto files.
//
// Ownership: borrows the admission, which outlives every call. Thread-safety: as gRPC requires.
#ifndef NIBBLE_SERVER_SERVICE_REFLECTION_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_REFLECTION_SERVICE_H_

#include <memory>
#include <string>
#include <vector>

namespace grpc {
class Service;
}  // namespace grpc

namespace nibble {

class Admission;

// `services`: full names of the services that the server has besides reflection.
std::unique_ptr<grpc::Service> MakeReflectionService(Admission& admission,
                                                     std::vector<std::string> services);

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_REFLECTION_SERVICE_H_
