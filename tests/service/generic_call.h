// A call of any method with any bytes, as a client that has no stubs makes it.
//
// Thread-safety: pure functions; a channel may be shared.
#ifndef NIBBLE_TESTS_SERVICE_GENERIC_CALL_H_
#define NIBBLE_TESTS_SERVICE_GENERIC_CALL_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "grpcpp/support/status.h"

namespace nibble {

struct GenericAnswer {
  grpc::Status status;
  std::vector<std::string> messages;  // at most as many as were asked for
};

// Sends the requests, says that they are all, and reads until the end or `most` messages, after
// which it cancels a stream. `method`: "/nibble.v1.Coordinator/ListJobs".
GenericAnswer CallWithBytes(const std::shared_ptr<grpc::Channel>& channel,
                            const std::string& method, const std::vector<std::string>& requests,
                            std::chrono::milliseconds deadline, bool is_stream = false,
                            size_t most = 1);

}  // namespace nibble

#endif  // NIBBLE_TESTS_SERVICE_GENERIC_CALL_H_
