// What proto/nibble/v1/coordinator.proto promises of each call, read from its comments: the status
// codes that it may be answered with.
//
// Thread-safety: pure functions.
#ifndef NIBBLE_TESTS_SERVICE_CONTRACT_H_
#define NIBBLE_TESTS_SERVICE_CONTRACT_H_

#include <map>
#include <set>
#include <string>

#include "grpcpp/support/status_code_enum.h"

namespace nibble {

std::string CodeName(grpc::StatusCode code);

// Codes by the name of the call; those that every call may return are in each of them, and OK.
// Empty where the text is not that of a service.
std::map<std::string, std::set<std::string>> PromisedCodes(const std::string& proto_text);

}  // namespace nibble

#endif  // NIBBLE_TESTS_SERVICE_CONTRACT_H_
