// The coordinator's gRPC server: its services, their health (grpc.health.v1) and server reflection
// on one port.
//
// It refuses to listen off loopback without TLS and authentication unless `insecure` is set. The
// server bounds the number of connections, the size of messages, the rate of requests and the
// memory of gRPC's buffers; the controller bounds the number of streams and waits. Connections that
// are idle or no longer answer are closed. Connections that are refused, and with TLS those that
// end before their first call, are in the audit log.
//
// Ownership: borrows the controller; owns the gRPC server, which its destructor shuts down.
// Thread-safety: all methods may be called from any thread.
#ifndef NIBBLE_SERVER_SERVICE_COORDINATOR_SERVER_H_
#define NIBBLE_SERVER_SERVICE_COORDINATOR_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/connections/connection_gate.h"
#include "server/service/admission.h"
#include "server/service/health_service.h"
#include "server/service/services.h"

namespace nibble {

class AuditLog;
class Authenticator;
class Controller;
class Credentials;

struct ServerOptions {
  std::string listen = "127.0.0.1:7700";           // host:port; port 0: a free one
  std::string http;                                // host:port of its metrics; empty: none
  bool insecure = false;                           // listen off loopback also without TLS
  std::shared_ptr<const Credentials> credentials;  // null: no TLS
  Authenticator* authenticator = nullptr;          // null: callers are not authenticated
  AuditLog* audit = nullptr;                       // null: none
  int streams_per_caller = 256;  // watches, waits and log streams of one authenticated caller
  ConnectionLimits connections;
  int max_message_bytes = 8 << 20;    // of a received message
  int64_t buffer_bytes = 512 << 20;   // gRPC's buffers of all connections
  int streams_per_connection = 4096;  // concurrent calls of one connection
  int64_t idle_ms = 3'600'000;        // close a connection after this time without a call
  int64_t probe_ms = 30'000;          // probe a connection after this time of silence …
  int64_t probe_answer_ms = 20'000;   // … and close it after this time without an answer
  RateLimits rate;
  ServiceLimits service;
  Health::Limits health;  // watches of the health status
};

// FailedPrecondition if `listen` is off loopback, and neither `insecure` nor `authenticated`: with
// TLS and authentication. InvalidArgument if it is no host:port.
absl::Status CheckListen(absl::string_view listen, bool insecure, bool authenticated);

class CoordinatorServer {
 public:
  // The errors of CheckListen; FailedPrecondition if the port cannot be listened on.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(Controller& controller,
                                                                  const ServerOptions& options);
  ~CoordinatorServer();

  int port() const;
  // Sets the health status of the server and of each service; initially serving.
  void SetServing(bool serving);
  // Stops accepting calls. After `grace_ms` changes in progress get UNAVAILABLE, so that callers
  // repeat them, and other calls are cancelled.
  void Shutdown(int64_t grace_ms);

 private:
  struct Parts;
  explicit CoordinatorServer(std::unique_ptr<Parts> parts);
  static absl::Status Open(const ServerOptions& options, bool tls, Parts& parts);
  // Ends what tokens and certificates that have expired hold open, and counts refusals.
  static void EndExpired(Parts& parts);

  const std::unique_ptr<Parts> parts_;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_COORDINATOR_SERVER_H_
