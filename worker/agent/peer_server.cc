#include "worker/agent/peer_server.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nibble {
namespace {

// Of all calls together, before they are read from their sockets.
constexpr size_t kCallBytes = size_t{64} << 20;
// A call of a peer is small; what is large is streamed.
constexpr int kMaxRequestBytes = 1 << 20;

}  // namespace

std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  return host;
}

grpc::Status ToGrpc(const absl::Status& status) {
  return {static_cast<grpc::StatusCode>(status.code()), std::string(status.message())};
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const LinkSecurity& security) {
  if (security.root_certificates.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = security.root_certificates;
  ssl.pem_cert_chain = security.certificate;
  ssl.pem_private_key = security.private_key;
  return grpc::SslCredentials(ssl);
}

absl::StatusOr<std::unique_ptr<PeerServer>> PeerServer::Start(
    const std::string& address, const LinkSecurity& security,
    std::vector<std::unique_ptr<grpc::Service>> services) {
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (security.root_certificates.empty()) {
    credentials = grpc::InsecureServerCredentials();
  } else {
    grpc::SslServerCredentialsOptions ssl(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    ssl.pem_root_certs = security.root_certificates;
    ssl.pem_key_cert_pairs.push_back({security.private_key, security.certificate});
    credentials = grpc::SslServerCredentials(ssl);
  }
  std::unique_ptr<PeerServer> peer(new PeerServer);
  peer->services_ = std::move(services);
  int port = 0;
  grpc::ServerBuilder builder;
  // Two daemons at one port would each see half of the calls.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("peers").Resize(kCallBytes));
  builder.AddListeningPort(address, credentials, &port);
  for (const std::unique_ptr<grpc::Service>& service : peer->services_) {
    builder.RegisterService(service.get());
  }
  peer->server_ = builder.BuildAndStart();
  if (peer->server_ == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("address: cannot listen at ", address));
  }
  peer->address_ = absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
  return peer;
}

PeerServer::~PeerServer() {
  if (server_ == nullptr) return;
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
}

}  // namespace nibble
