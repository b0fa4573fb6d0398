// For tests of the coordinator as foreign or hostile clients see it: calls of any method with any
// bytes, requests with one bad field, and the status codes that the contract allows.
//
// Does not link any message of nibble.v1: foreign_client_test must not have them.
//
// Ownership: values; messages and channels are borrowed. Thread-safety: free functions; a channel
// may be shared.
#ifndef NIBBLE_TESTS_SERVICE_TESTING_H_
#define NIBBLE_TESTS_SERVICE_TESTING_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "google/protobuf/message.h"
#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"
#include "grpcpp/support/status_code_enum.h"

namespace nibble {

struct GenericAnswer {
  grpc::Status status;
  std::vector<std::string> messages;  // at most `most`
};

// Sends the requests, half-closes, and reads until the end or `most` messages, after which it
// cancels a stream. `method`: "/nibble.v1.Coordinator/ListJobs".
GenericAnswer CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::vector<std::string>& requests,
                            std::chrono::milliseconds deadline, bool is_stream = false,
                            size_t most = 1);

// Sets each field of `base`, however deep, to each bad value of its type, one at a time, and calls
// `use` with a description ("scheduling.priority = 2147483647") and the changed message. Restores
// `base` after each call.
void ForEachBadValue(
    google::protobuf::Message& base,
    const std::function<void(const std::string& what, const google::protobuf::Message&)>& use);

std::string CodeName(grpc::StatusCode code);

// The status codes that the comments of a .proto file (coordinator.proto) promise, by call. Each
// set contains OK and the codes that every call may return. Empty if the text has no service.
std::map<std::string, std::set<std::string>> PromisedCodes(const std::string& proto_text);

}  // namespace nibble

#endif  // NIBBLE_TESTS_SERVICE_TESTING_H_
