#include "server/service/coordinator_server.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/connections/connection_gate.h"
#include "common/identity/credentials.h"
#include "common/listen_address.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_context.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/metrics/rpc_metrics.h"
#include "server/service/admission.h"
#include "server/service/reflection_service.h"
#include "server/service/services.h"

namespace nibble {
namespace {

constexpr const char* kServices[] = {"nibble.v1.Coordinator", "nibble.v1.Access",
                                     "nibble.v1.WorkerLink"};
// A connection whose handshake takes longer is closed.
constexpr int kHandshakeMs = 10'000;
// Write buffer of a stream that is not being read; gRPC's default is 64 KiB.
constexpr int kWriteBufferBytes = 8 << 10;
// Within which the end of the server reaches callers whose changes are not durable.
constexpr std::chrono::seconds kAnswerTime(1);

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

namespace {

// Runs a task about once a second, in a thread of its own.
class EverySecond {
 public:
  explicit EverySecond(std::function<void()> task) : task_(std::move(task)) {
    thread_ = std::thread([this] { Run(); });
  }
  ~EverySecond() {
    {
      const MutexLock lock(&mutex_);
      ending_ = true;
      changed_.SignalAll();
    }
    thread_.join();
  }
  EverySecond(const EverySecond&) = delete;
  EverySecond& operator=(const EverySecond&) = delete;

 private:
  bool Wait() {
    const MutexLock lock(&mutex_);
    if (!ending_) changed_.WaitFor(&mutex_, std::chrono::seconds(1));
    return !ending_;
  }
  void Run() {
    while (Wait()) task_();
  }

  const std::function<void()> task_;
  Mutex mutex_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the above
};

}  // namespace

namespace {

Admission::Options AdmissionOf(Controller& controller, const ServerOptions& options, bool tls,
                               std::function<bool(const std::string&)> end_connection) {
  return {.rate = options.rate,
          .streams_per_caller = options.streams_per_caller,
          .tls = tls,
          .authenticator = options.authenticator,
          .audit = options.audit,
          .rights_of = [&controller](const std::string& job) -> std::optional<JobRights> {
            return controller.Inspect([&](const State& shown) -> std::optional<JobRights> {
              const v1::JobRecord* const found = shown.FindJob(job);
              if (found == nullptr) return std::nullopt;
              return JobRights{found->owner(), found->scheduling().project()};
            });
          },
          .count = [&controller](const char* outcome) { controller.metrics().Audited(outcome); },
          .end_connection = std::move(end_connection)};
}

}  // namespace

struct CoordinatorServer::Parts {
  Parts(Controller& controller, const ServerOptions& options, bool tls)
      : admission(controller.clock(),
                  AdmissionOf(controller, options, tls,
                              [this](const std::string& from) { return gate->End(from); })) {}

  Admission admission;
  const OpenStreams logs = std::make_shared<LogStreams>();
  const std::shared_ptr<OpenChanges> changes = std::make_shared<OpenChanges>();
  std::unique_ptr<grpc::Service> coordinator;
  std::unique_ptr<grpc::Service> access;
  std::unique_ptr<grpc::Service> worker_link;
  std::unique_ptr<grpc::Service> reflection;
  std::shared_ptr<Health> health;
  std::unique_ptr<grpc::Service> health_service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
  std::unique_ptr<ConnectionGate> gate;  // hands its connections to the acceptor
  std::unique_ptr<EverySecond> expiries;
};

absl::Status CheckListen(absl::string_view listen, bool insecure, bool authenticated) {
  const absl::Status status = CheckListenAddress("listen", listen, insecure || authenticated);
  if (!absl::IsFailedPrecondition(status)) return status;
  return absl::FailedPreconditionError(
      absl::StrCat(status.message(),
                   "; or give --tls-cert, --tls-key, --tls-ca and --bootstrap-token-file, so that "
                   "they are (docs/guide/security.md)"));
}

void CoordinatorServer::EndExpired(Parts& parts) {
  parts.admission.EndInvalid();
  parts.admission.RecordCounts();
  const int64_t now_unix_ms = parts.admission.clock().NowUnixMs();
  for (const std::string& from : parts.gate->CloseExpired(now_unix_ms)) {
    parts.admission.RecordConnection(
        from, absl::UnauthenticatedError("the certificate of the connection has expired"));
  }
}

// The listening sockets. Errors name --listen.
absl::Status CoordinatorServer::Open(const ServerOptions& options, bool tls, Parts& parts) {
  Admission& admission = parts.admission;
  NIBBLE_ASSIGN_OR_RETURN(const ListenAddress address,
                          ParseListenAddress("listen", options.listen));
  ConnectionGate::Options gate = {
      .limits = options.connections,
      .answer_ms = options.probe_answer_ms,
      .accepted =
          [&parts](int listener, int connection) {
            grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters taken;
            taken.listener_fd = listener;
            taken.fd = connection;
            parts.acceptor->HandleNewConnection(&taken);
          },
      .refused = [&admission](const std::string& from,
                              const absl::Status& why) { admission.RecordConnection(from, why); }};
  if (tls) {
    gate.silent = [&admission](const std::string& from) {
      admission.RecordConnection(
          from, absl::UnauthenticatedError("the connection ended before its first call: its TLS "
                                           "handshake failed, or the peer gave it up"));
    };
  }
  auto listening = ConnectionGate::Listen(address, std::move(gate));
  if (!listening.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "listen: '", options.listen, "' cannot be listened on: ", listening.status().message(),
        "; the port is taken, or the address is not this machine's; choose another "
        "with --listen"));
  }
  parts.gate = *std::move(listening);
  return absl::OkStatus();
}

namespace {

// `port`: that the server listens on.
absl::StatusOr<WorkerAddresses> AddressesOf(const ServerOptions& options, int port) {
  NIBBLE_ASSIGN_OR_RETURN(ListenAddress listen, ParseListenAddress("listen", options.listen));
  listen.port = port;
  std::vector<ListenAddress> own = {std::move(listen)};
  if (!options.http.empty()) {
    NIBBLE_ASSIGN_OR_RETURN(ListenAddress http, ParseListenAddress("http", options.http));
    own.push_back(std::move(http));
  }
  return WorkerAddresses(std::move(own));
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Controller& controller, const ServerOptions& options) {
  const std::shared_ptr<const Credentials> credentials =
      options.credentials == nullptr ? Credentials::Insecure() : options.credentials;
  const bool tls = credentials->secure();
  NIBBLE_RETURN_IF_ERROR(
      CheckListen(options.listen, options.insecure, tls && options.authenticator != nullptr));
  auto parts = std::make_unique<Parts>(controller, options, tls);
  parts->coordinator = MakeCoordinatorService(controller, parts->admission, options.service,
                                              credentials, parts->logs, parts->changes);
  parts->access = MakeAccessService(parts->admission);
  std::vector<std::string> described(std::begin(kServices), std::end(kServices));
  described.push_back("grpc.health.v1.Health");
  parts->reflection = MakeReflectionService(parts->admission, std::move(described));
  std::set<std::string> healthy(std::begin(kServices), std::end(kServices));
  healthy.insert("");
  parts->health = std::make_shared<Health>(std::move(healthy), options.health);
  parts->health_service = MakeHealthService(parts->admission, parts->health);
  NIBBLE_RETURN_IF_ERROR(Open(options, tls, *parts));
  NIBBLE_ASSIGN_OR_RETURN(WorkerAddresses addresses, AddressesOf(options, parts->gate->port()));
  parts->worker_link = MakeWorkerLinkService(controller, parts->admission, std::move(addresses));
  grpc::ServerBuilder builder;
  builder.AddChannelArgument(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, kWriteBufferBytes);
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  SetConnectionLimits(options, builder);
  CountCalls(
      controller.metrics(),
      [gate = parts->gate.get()](const grpc::ServerContextBase& context) {
        const std::string peer = context.peer();
        if (!gate->Called(peer)) return;
        const int64_t expires = PeerExpiryUnixMs(*context.auth_context());
        if (expires > 0) gate->Expires(peer, expires);
      },
      builder);
  using External = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  parts->acceptor = builder.experimental().AddExternalConnectionAcceptor(External::FROM_FD,
                                                                         credentials->ForServer());
  builder.RegisterService(parts->coordinator.get());
  builder.RegisterService(parts->access.get());
  builder.RegisterService(parts->worker_link.get());
  builder.RegisterService(parts->reflection.get());
  builder.RegisterService(parts->health_service.get());
  parts->server = builder.BuildAndStart();
  if (parts->server == nullptr) {
    return absl::FailedPreconditionError("gRPC: the server does not start");
  }
  parts->gate->Start();
  if (options.authenticator != nullptr || options.audit != nullptr) {
    parts->expiries = std::make_unique<EverySecond>([&parts = *parts] { EndExpired(parts); });
  }
  std::unique_ptr<CoordinatorServer> server(new CoordinatorServer(std::move(parts)));
  server->SetServing(true);
  return server;
}

CoordinatorServer::CoordinatorServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

CoordinatorServer::~CoordinatorServer() {
  Shutdown(0);
  parts_->logs->AwaitReaders();
  // Whoever records refusals has ended when the last ones are counted.
  parts_->expiries.reset();
  parts_->gate.reset();
  parts_->admission.RecordCounts(/*end=*/true);
}

int CoordinatorServer::port() const { return parts_->gate->port(); }

void CoordinatorServer::SetServing(bool serving) { parts_->health->SetServing(serving); }

void CoordinatorServer::Shutdown(int64_t grace_ms) {
  parts_->gate->StopAccepting();
  parts_->health->Stop();
  // gRPC cancels the other calls then; what was answered last is to reach its caller.
  const auto end = std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms);
  const bool late = parts_->changes->End(grace_ms);
  parts_->server->Shutdown(late ? std::max(end, std::chrono::system_clock::now() + kAnswerTime)
                                : end);
  parts_->server->Wait();
}

}  // namespace nibble
