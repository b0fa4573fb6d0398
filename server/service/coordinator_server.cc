#include "server/service/coordinator_server.h"

#include <chrono>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/metrics/listen_address.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/resource_quota.h"
#include "server/metrics/rpc_metrics.h"
#include "server/service/admission.h"
#include "server/service/reflection_service.h"
#include "server/service/worker_link_service.h"

namespace nibble {

struct CoordinatorServer::Parts {
  Parts(const Clock& clock, const RateLimits& rate) : admission(clock, rate) {}

  Admission admission;
  std::unique_ptr<grpc::Service> coordinator;
  std::unique_ptr<grpc::Service> worker_link;
  std::unique_ptr<grpc::Service> reflection;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

namespace {

constexpr const char* kServices[] = {"nibble.v1.Coordinator", "nibble.v1.WorkerLink"};
// A connection that has not said what it is by then is closed.
constexpr int kHandshakeMs = 10'000;
// What a stream that nobody reads may keep of its writes; gRPC would keep 64 KiB.
constexpr int kWriteBufferBytes = 8 << 10;

void SetConnectionLimits(const ServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetResourceQuota(
      grpc::ResourceQuota("coordinator").Resize(static_cast<size_t>(options.buffer_bytes)));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.streams_per_connection);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, static_cast<int>(options.idle_ms));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(options.probe_ms));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(options.probe_answer_ms));
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
}

}  // namespace

absl::Status CheckListen(absl::string_view listen, bool insecure) {
  return CheckListenAddress("listen", listen, insecure);
}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Controller& controller, const ServerOptions& options) {
  const absl::Status status = CheckListen(options.listen, options.insecure);
  if (!status.ok()) return status;
  auto parts = std::make_unique<Parts>(controller.clock(), options.rate);
  parts->coordinator = MakeCoordinatorService(controller, parts->admission, options.service);
  parts->worker_link = MakeWorkerLinkService(controller, parts->admission);
  std::vector<std::string> described(std::begin(kServices), std::end(kServices));
  described.push_back("grpc.health.v1.Health");
  parts->reflection = MakeReflectionService(parts->admission, std::move(described));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  // A second coordinator on the port is an error, not a partner.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kWriteBufferBytes);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  SetConnectionLimits(options, builder);
  CountCalls(controller.metrics(), builder);
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &parts->port);
  builder.RegisterService(parts->coordinator.get());
  builder.RegisterService(parts->worker_link.get());
  builder.RegisterService(parts->reflection.get());
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr || parts->port == 0) {
    return absl::UnavailableError(
        absl::StrCat("listen: '", options.listen, "' cannot be listened on"));
  }
  std::unique_ptr<CoordinatorServer> server(new CoordinatorServer(std::move(parts)));
  server->SetServing(true);
  return server;
}

CoordinatorServer::CoordinatorServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

CoordinatorServer::~CoordinatorServer() { Shutdown(0); }

int CoordinatorServer::port() const { return parts_->port; }

void CoordinatorServer::SetServing(bool serving) {
  grpc::HealthCheckServiceInterface& health = *parts_->server->GetHealthCheckService();
  health.SetServingStatus(serving);
  for (const char* const service : kServices) health.SetServingStatus(service, serving);
}

void CoordinatorServer::Shutdown(int64_t grace_ms) {
  parts_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms));
  parts_->server->Wait();
}

}  // namespace nibble
