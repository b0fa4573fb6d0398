// The coordinator's server: its two services, the health of each (grpc.health.v1) and reflection on
// one port.
//
// Off loopback it refuses to start unless told that insecure is meant, because callers are not
// authenticated. Messages are bounded in size, requests in rate, what gRPC buffers in memory;
// streams and waits in number, by the controller. A connection on which nothing is called, or that
// no longer answers, is closed.
//
// Ownership: borrows the controller; owns everything of gRPC, and ends it when it is
// destroyed. Thread-safety: all methods.
#ifndef NIBBLE_SERVER_SERVICE_COORDINATOR_SERVER_H_
#define NIBBLE_SERVER_SERVICE_COORDINATOR_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/controller/controller.h"
#include "server/service/coordinator_service.h"
#include "server/service/rate_limit.h"

namespace nibble {

struct ServerOptions {
  std::string listen = "127.0.0.1:7700";  // host:port; port 0: a free one
  bool insecure = false;                  // off loopback, too
  int max_message_bytes = 8 << 20;        // of what is received
  int64_t buffer_bytes = 512 << 20;       // of all connections, in gRPC
  int streams_per_connection = 4096;      // calls of one connection at once
  int64_t idle_ms = 3'600'000;            // a connection without a call for so long is closed
  int64_t probe_ms = 30'000;              // after so long without a word a connection is probed …
  int64_t probe_answer_ms = 20'000;       // … and closed without an answer in this time
  RateLimits rate;
  ServiceLimits service;
};

// FailedPrecondition where `listen` is off loopback and not meant to be; InvalidArgument where it
// is no host:port.
absl::Status CheckListen(absl::string_view listen, bool insecure);

class CoordinatorServer {
 public:
  // Errors as CheckListen; Unavailable where the port cannot be listened on.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(Controller& controller,
                                                                  const ServerOptions& options);
  ~CoordinatorServer();

  int port() const;
  // What probes are told of the server and of each of its services; it starts serving.
  void SetServing(bool serving);
  // Takes no new calls; those under way have so long, then they are cancelled.
  void Shutdown(int64_t grace_ms);

 private:
  struct Parts;
  explicit CoordinatorServer(std::unique_ptr<Parts> parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_COORDINATOR_SERVER_H_
