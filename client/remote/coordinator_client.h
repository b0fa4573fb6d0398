// Calls to the coordinator: the choice of its address, and a client with deadlines and retries.
//
// A call that fails with UNAVAILABLE is retried with back-off until the timeout has passed, unless
// it is the client's first and options.fails_at_once applies. Retries are safe: all attempts at a
// change carry the same request id, and the coordinator applies a request id once.
//
// Ownership: a client owns its channel. Thread-safety: all methods of CoordinatorClient; the
// functions that find addresses read the environment, as getenv does.
#ifndef NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_
#define NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/remote/client_access.h"
#include "common/backoff.h"
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

inline constexpr char kDefaultServer[] = "127.0.0.1:7700";

// ${NIBBLE_HOME:-$HOME/.nibble}/cluster: the directory of the local cluster. Without HOME the home
// directory of the user database is used.
std::string DefaultClusterDirectory();

// The file with the address of the local cluster in `directory`; exists while the cluster is up.
std::string ClusterAddressPath(const std::string& directory);
// Its line. NotFound if no cluster is up.
absl::StatusOr<std::string> ReadClusterAddress(const std::string& directory);

// host:port from the first of these that is set: the flag, NIBBLE_SERVER, the local cluster in
// DefaultClusterDirectory(), kDefaultServer. InvalidArgument names the source of a malformed
// address.
absl::StatusOr<std::string> FindServerAddress(const std::string& flag);

struct ClientOptions {
  std::string server;                          // host:port
  absl::Duration timeout = absl::Seconds(10);  // of a call with all its retries
  // The first call fails at once if the server is on this machine and nothing listens there. A
  // server elsewhere may be starting, so calls to it are retried.
  bool fails_at_once = false;
  ClientAccess access;
  // Recorded as the author of changes if the coordinator does not authenticate callers.
  std::string author;
  std::function<void(const std::string&)> say;  // receives messages for people
};

// The user's name in the form that the coordinator accepts: printable characters, not empty.
std::string AuthorName();

// Time on the monotonic clock, from an arbitrary start: timeouts stay right when the wall clock is
// set.
inline absl::Duration SteadyNow() {
  return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

// The pauses between the retries of a client: from 0.1 s, doubling to 2 s.
Backoff RetryBackoff();

class CoordinatorClient;

// One attempt at a call: its author, its deadline and its cancellation.
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
  // Once, after Read has returned false: the status of the stream, for Explain().
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

  // Retries as described above. Gives a change a new request id.
  template <class Request, class Response>
  absl::StatusOr<Response> Call(const Rpc<Request, Response>& rpc, Request request) const {
    if constexpr (requires { request.set_request_id(""); }) request.set_request_id(NewRequestId());
    Response response;
    NIBBLE_RETURN_IF_ERROR(Repeat(rpc.method, request, response));
    return response;
  }

  // Calls until the last page; returns all pages merged, without next_token.
  template <class Request, class Response>
  absl::StatusOr<Response> CallAllPages(const Rpc<Request, Response>& rpc,
                                        Request request = {}) const {
    request.mutable_page()->set_size(1000);
    request.mutable_page()->clear_token();
    Response all;
    do {
      NIBBLE_ASSIGN_OR_RETURN(const Response page, Call(rpc, request));
      request.mutable_page()->set_token(page.next_token());
      all.MergeFrom(page);
    } while (!request.page().token().empty());
    all.clear_next_token();
    return all;
  }

  // One attempt, without a request id. The status is the call's own, for Explain().
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

  // Whether grpc.health.v1 reports within `patience` that the server serves.
  bool Serves(absl::Duration patience) const;

  // The status of a call for people: an unanswered call names the server and the remedy.
  absl::Status Explain(const absl::Status& status) const;

  const ClientOptions& options() const { return options_; }

 private:
  struct Connection;

  static std::string NewRequestId();  // 32 random hexadecimal digits
  absl::Status Repeat(const char* method, const google::protobuf::Message& request,
                      google::protobuf::Message& response) const;
  absl::Status Attempt(const char* method, const google::protobuf::Message& request,
                       google::protobuf::Message& response, CallContext& context) const;

  const ClientOptions options_;
  mutable std::atomic<bool> reached_ = false;  // some call was answered
  const std::unique_ptr<Connection> connection_;
};

}  // namespace nibble

#endif  // NIBBLE_CLIENT_REMOTE_COORDINATOR_CLIENT_H_
