// Calls to the coordinator: which one a command speaks to, and one client object per command.
//
// A call that gets no answer (UNAVAILABLE) is retried with growing pauses until the timeout is
// over, unless it is the command's first and options.fails_at_once applies. Retries are safe:
// every change made through one object carries the same request id, and the coordinator applies a
// request id once.
//
// Ownership: a client owns its channel. Thread-safety: all methods of CoordinatorClient;
// FindServerAddress reads the environment, as getenv.
#ifndef NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_
#define NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/status_macros.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf
namespace grpc {
class ClientContext;
}  // namespace grpc

namespace nibble {
namespace v1 {
class StreamLogsRequest;
class StreamLogsResponse;
class WatchJobsRequest;
class WatchJobsResponse;
}  // namespace v1

inline constexpr char kUsualServer[] = "127.0.0.1:7700";

// host:port from the first of these that is set: the flag, NIBBLE_SERVER, the file
// ${NIBBLE_HOME:-$HOME/.nibble}/cluster/address that a running local cluster writes, kUsualServer.
// InvalidArgument names the source of a malformed address.
absl::StatusOr<std::string> FindServerAddress(const std::string& flag);

// Whether the server is on this machine and refuses connections, so that a retry is useless.
// False for a server elsewhere, which may be starting or behind a proxy that is.
bool NobodyListensHere(const std::string& server);

struct ClientOptions {
  std::string server;                          // host:port
  absl::Duration timeout = absl::Seconds(10);  // of a call with all its retries
  // The first call fails at once if the server is on this machine and nothing listens there.
  bool fails_at_once = false;
  std::string author;                           // recorded as the author of changes
  std::function<void(const std::string&)> say;  // receives messages for people
};

// The user's name as the coordinator takes it: printable characters, not empty.
std::string AuthorName();
// 32 random hexadecimal digits.
std::string NewRequestId();

// Time on the monotonic clock, from an arbitrary start: timeouts hold although the wall clock may
// be set meanwhile.
inline absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// The pauses between retries: 0.1 s, doubling to 2 s.
class RetryPauses {
 public:
  absl::Duration Next() { return std::exchange(next_, std::min(next_ * 2, absl::Seconds(2))); }

 private:
  absl::Duration next_ = absl::Milliseconds(100);
};

class CoordinatorClient;

// One attempt at a call: its author, its deadline, and its cancellation.
class CallContext {
 public:
  // An infinite timeout sets no deadline.
  explicit CallContext(const CoordinatorClient& client,
                       absl::Duration timeout = absl::InfiniteDuration());
  ~CallContext();

  // From any thread: the call ends with kCancelled.
  void Cancel();
  grpc::ClientContext& grpc() { return *context_; }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
};

// The responses of a streaming call, pulled one by one. Read and Finish from one thread.
template <class Response>
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;

  // Waits for the next response; false when the stream has ended.
  virtual bool Read(Response& response) = 0;
  // Once, after Read has returned false: how the stream ended, before Told.
  virtual absl::Status Finish() = 0;
  // From any thread: the stream ends with kCancelled.
  virtual void Cancel() = 0;
};

template <class Request, class Response>
struct Rpc;  // the constants are in client/remote/rpcs.h

class CoordinatorClient {
 public:
  explicit CoordinatorClient(ClientOptions options);
  ~CoordinatorClient();

  // Retries as described above. Sets the request id of a change.
  template <class Request, class Response>
  absl::StatusOr<Response> Call(const Rpc<Request, Response>& rpc, Request request) const {
    if constexpr (requires { request.set_request_id(""); }) request.set_request_id(request_id_);
    Response response;
    NIBBLE_RETURN_IF_ERROR(Repeat(rpc.method, request, response));
    return response;
  }

  // One attempt, without a request id. The status is the call's own, before Told.
  template <class Request, class Response>
  absl::StatusOr<Response> CallOnce(const Rpc<Request, Response>& rpc, const Request& request,
                                    CallContext& context) const {
    Response response;
    NIBBLE_RETURN_IF_ERROR(Attempt(rpc.method, request, response, context));
    return response;
  }

  // Streams without a deadline.
  std::unique_ptr<ResponseStream<v1::WatchJobsResponse>> WatchJobs(
      const v1::WatchJobsRequest& request) const;
  std::unique_ptr<ResponseStream<v1::StreamLogsResponse>> StreamLogs(
      const v1::StreamLogsRequest& request) const;

  // A call's own status as it is shown: an error without an answer names the server.
  absl::Status Told(const absl::Status& status) const;

  const ClientOptions& options() const { return options_; }

 private:
  struct Connection;

  absl::Status Repeat(const char* method, const google::protobuf::Message& request,
                      google::protobuf::Message& response) const;
  absl::Status Attempt(const char* method, const google::protobuf::Message& request,
                       google::protobuf::Message& response, CallContext& context) const;

  const ClientOptions options_;
  mutable std::atomic<bool> reached_ = false;  // some call was answered
  const std::string request_id_ = NewRequestId();
  const std::unique_ptr<Connection> connection_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_
