// The one port of a daemon: the services that other workers and the coordinator call.
//
// Ownership: owns the services, the server and its port. Thread-safety: all methods from any
// thread; calls are served by gRPC's threads.
#ifndef NIBBLE_WORKER_AGENT_PEER_SERVER_H_
#define NIBBLE_WORKER_AGENT_PEER_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/service_type.h"
#include "worker/agent/link_security.h"

namespace nibble {

// The host of "host:port"; of "[::1]:7000" that within the brackets.
std::string HostOf(const std::string& address);

grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// To another worker, or to the coordinator, with this worker's own certificate where there is one.
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const LinkSecurity& security);

class PeerServer {
 public:
  // Listens at `address`, host:port; port 0 picks a free one. With a root certificate both sides
  // show theirs. Unavailable where it cannot be bound.
  static absl::StatusOr<std::unique_ptr<PeerServer>> Start(
      const std::string& address, const LinkSecurity& security,
      std::vector<std::unique_ptr<grpc::Service>> services);
  // Cuts the calls that are being served.
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  // With the port that was picked.
  const std::string& address() const { return address_; }

 private:
  PeerServer() = default;

  std::string address_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace nibble

#endif  // NIBBLE_WORKER_AGENT_PEER_SERVER_H_
