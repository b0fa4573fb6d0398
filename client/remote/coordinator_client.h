// Calls to the coordinator: one object for one command.
//
// A call that finds nobody (UNAVAILABLE) is made again, with growing pauses, until the timeout is
// over, unless it is the first and fails at once. That is safe for changes because every change of
// the object carries the same request id: one command makes one change.
//
// Ownership: owns its channel. Thread-safety: all methods.
#ifndef NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_
#define NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"

namespace nibble {

struct ClientOptions {
  std::string server;                          // host:port
  absl::Duration timeout = absl::Seconds(10);  // of a call with all its repetitions
  // The first call fails at once where the server is on this machine and nothing listens there.
  bool fails_at_once = false;
  std::string author;                           // who the changes are by
  std::function<void(const std::string&)> say;  // chatter for people
};

// The user's name as the coordinator takes it: printable characters, not empty.
std::string AuthorName();
// 32 hexadecimal digits that nobody else has.
std::string NewRequestId();

// Since some moment, on the monotonic clock: whatever a command waits for ends in its time, also
// where the wall clock is set meanwhile.
inline absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}
// `wait` from now, as gRPC takes it: it is on the monotonic clock from then on.
inline std::chrono::system_clock::time_point DeadlineIn(absl::Duration wait) {
  return absl::ToChronoTime(absl::Now() + wait);
}

// The pauses between repetitions: 0.1 s, doubling to 2 s.
class RetryPauses {
 public:
  absl::Duration Next() { return std::exchange(next_, std::min(next_ * 2, absl::Seconds(2))); }

 private:
  absl::Duration next_ = absl::Milliseconds(100);
};

class CoordinatorClient {
 public:
  using Stub = v1::Coordinator::StubInterface;
  template <class Request, class Response>
  using Method = grpc::Status (Stub::*)(grpc::ClientContext*, const Request&, Response*);

  explicit CoordinatorClient(ClientOptions options);

  // Of a change the request id is filled in.
  template <class Request, class Response>
  absl::StatusOr<Response> Call(Method<Request, Response> method, Request request) {
    if constexpr (requires { request.set_request_id(""); }) request.set_request_id(request_id_);
    Response response;
    const absl::Status status = Repeat([&](grpc::ClientContext& context) {
      return (stub().*method)(&context, request, &response);
    });
    if (!status.ok()) return status;
    return response;
  }

  // For streams and waits: who calls, and no deadline.
  std::unique_ptr<grpc::ClientContext> NewContext() const;
  Stub& stub() { return *stub_; }
  // As every call's error is told: UNAVAILABLE names the server.
  absl::Status Told(const grpc::Status& status) const;

  const ClientOptions& options() const { return options_; }

 private:
  absl::Status Repeat(const std::function<grpc::Status(grpc::ClientContext&)>& call) const;

  const ClientOptions options_;
  mutable std::atomic<bool> reached_ = false;  // somebody has answered
  const std::string request_id_ = NewRequestId();
  const std::unique_ptr<v1::Coordinator::Stub> stub_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_
