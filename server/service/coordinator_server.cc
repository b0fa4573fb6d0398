#include "server/service/coordinator_server.h"

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
#include "absl/strings/str_replace.h"
#include "common/connections/connection_gate.h"
#include "common/identity/credentials.h"
#include "common/listen_address.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/grpc/reflection/v1/reflection.pb.h"
#include "server/controller/clock.h"
#include "server/controller/controller.h"
#include "server/metrics/rpc_metrics.h"
#include "server/service/admission.h"
#include "server/service/admitted_service.h"
#include "server/service/health_service.h"
#include "server/service/services.h"
#include "server/service/wire.h"

namespace nibble {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorProto;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

constexpr char kV1[] = "grpc.reflection.v1";
constexpr char kV1Alpha[] = "grpc.reflection.v1alpha";
constexpr const char* kCalls[] = {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
                                  "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};

// The descriptor of v1, renamed to v1alpha.
FileDescriptorProto AlphaFile() {
  FileDescriptorProto file;
  ServerReflectionRequest::descriptor()->file()->CopyTo(&file);
  file.set_package(kV1Alpha);
  file.set_name(absl::StrReplaceAll(file.name(), {{"/v1/", "/v1alpha/"}}));
  const auto rename = [](std::string& type) {
    type = absl::StrReplaceAll(type,
                               {{absl::StrCat(".", kV1, "."), absl::StrCat(".", kV1Alpha, ".")}});
  };
  for (auto& message : *file.mutable_message_type()) {
    for (auto& field : *message.mutable_field()) {
      if (field.has_type_name()) rename(*field.mutable_type_name());
    }
  }
  for (auto& method : *file.mutable_service(0)->mutable_method()) {
    rename(*method.mutable_input_type());
    rename(*method.mutable_output_type());
  }
  return file;
}

// Answers reflection requests from the descriptors linked into the program. Immutable.
class Descriptors {
 public:
  explicit Descriptors(std::vector<std::string> services) : services_(std::move(services)) {
    pool_.BuildFile(AlphaFile());
    for (const char* const package : {kV1, kV1Alpha}) {
      services_.push_back(absl::StrCat(package, ".ServerReflection"));
    }
  }

  // `sent`: the files already sent on this stream.
  ServerReflectionResponse Answer(const ServerReflectionRequest& request,
                                  std::set<const FileDescriptor*>& sent) const {
    ServerReflectionResponse answer;
    answer.set_valid_host(request.host());
    *answer.mutable_original_request() = request;
    switch (request.message_request_case()) {
      case ServerReflectionRequest::kFileByFilename:
        AddFile(pool_.FindFileByName(request.file_by_filename()), request.file_by_filename(), sent,
                answer);
        break;
      case ServerReflectionRequest::kFileContainingSymbol:
        AddFile(pool_.FindFileContainingSymbol(request.file_containing_symbol()),
                request.file_containing_symbol(), sent, answer);
        break;
      case ServerReflectionRequest::kFileContainingExtension: {
        const auto& wanted = request.file_containing_extension();
        const Descriptor* const type = pool_.FindMessageTypeByName(wanted.containing_type());
        const FieldDescriptor* const extension =
            type == nullptr ? nullptr
                            : pool_.FindExtensionByNumber(type, wanted.extension_number());
        AddFile(
            extension == nullptr ? nullptr : extension->file(),
            absl::StrCat("extension ", wanted.extension_number(), " of ", wanted.containing_type()),
            sent, answer);
        break;
      }
      case ServerReflectionRequest::kAllExtensionNumbersOfType:
        AddExtensions(request.all_extension_numbers_of_type(), answer);
        break;
      case ServerReflectionRequest::kListServices:
        for (const std::string& name : services_) {
          answer.mutable_list_services_response()->add_service()->set_name(name);
        }
        break;
      case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
        SetError(grpc::StatusCode::INVALID_ARGUMENT, "message_request: not set", answer);
        break;
    }
    return answer;
  }

 private:
  static void SetError(grpc::StatusCode code, const std::string& message,
                       ServerReflectionResponse& answer) {
    answer.mutable_error_response()->set_error_code(code);
    answer.mutable_error_response()->set_error_message(message);
  }

  static void AddFile(const FileDescriptor* file, const std::string& wanted,
                      std::set<const FileDescriptor*>& sent, ServerReflectionResponse& answer) {
    if (file == nullptr) {
      return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat(wanted, ": not found"), answer);
    }
    auto& files = *answer.mutable_file_descriptor_response();
    // The requested file comes first, even if it was sent before.
    std::vector<const FileDescriptor*> left = {file};
    sent.erase(file);
    while (!left.empty()) {
      const FileDescriptor* const next = left.back();
      left.pop_back();
      if (!sent.insert(next).second) continue;
      FileDescriptorProto proto;
      next->CopyTo(&proto);
      files.add_file_descriptor_proto(proto.SerializeAsString());
      for (int i = 0; i < next->dependency_count(); ++i) left.push_back(next->dependency(i));
    }
  }

  void AddExtensions(const std::string& type_name, ServerReflectionResponse& answer) const {
    const Descriptor* const type = pool_.FindMessageTypeByName(type_name);
    if (type == nullptr) {
      return SetError(grpc::StatusCode::NOT_FOUND, absl::StrCat(type_name, ": not found"), answer);
    }
    auto& numbers = *answer.mutable_all_extension_numbers_response();
    numbers.set_base_type_name(type_name);
    std::vector<const FieldDescriptor*> extensions;
    pool_.FindAllExtensions(type, &extensions);
    for (const FieldDescriptor* const one : extensions) {
      numbers.add_extension_number(one->number());
    }
  }

  DescriptorPool pool_{DescriptorPool::generated_pool()};
  std::vector<std::string> services_;
};

// Reads a request and writes its response in turn; callbacks never run concurrently. Every request
// is admitted like any other call. An open stream uses no thread, and has a place among its
// caller's: one that is not read keeps that and a response.
class ReflectionReactor
    : public grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse> {
 public:
  ReflectionReactor(const Descriptors& descriptors, Admission& admission, const char* call,
                    const grpc::CallbackServerContext& context, std::shared_ptr<OpenCall> place)
      : descriptors_(descriptors),
        admission_(admission),
        call_(call),
        context_(context),
        place_(std::move(place)) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    Refusal refusal;
    if (!admission_.Admit(context_, call_, nullptr, refusal)) {
      return Finish(ToGrpc(refusal.status));
    }
    response_ = descriptors_.Answer(request_, sent_);
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&request_);
  }

  void OnDone() override { delete this; }

 private:
  const Descriptors& descriptors_;
  Admission& admission_;
  const char* const call_;
  const grpc::CallbackServerContext& context_;
  const std::shared_ptr<OpenCall> place_;
  std::set<const FileDescriptor*> sent_;
  ServerReflectionRequest request_;
  ServerReflectionResponse response_;
};

// gRPC's server reflection, v1 and v1alpha, for clients that do not have the .proto files.
class ReflectionService : public grpc::Service {
 public:
  // `services`: full names of the services that the server has besides reflection.
  ReflectionService(Admission& admission, std::vector<std::string> services)
      : descriptors_(std::move(services)) {
    using Handler =
        grpc::internal::CallbackBidiHandler<ServerReflectionRequest, ServerReflectionResponse>;
    int index = 0;
    // One grpc::Service for both versions, though each is a service of its own to clients.
    for (const char* const call : kCalls) {
      AddMethod(new grpc::internal::RpcServiceMethod(
          call, grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
      MarkMethodCallback(
          index++,
          new Handler(
              [this, &admission, call](grpc::CallbackServerContext* context)
                  -> grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse>* {
                using Refused = RefusedCall<
                    grpc::ServerBidiReactor<ServerReflectionRequest, ServerReflectionResponse>>;
                Refusal refusal;
                const auto caller = admission.Admit(*context, call, nullptr, refusal);
                if (!caller) return new Refused(std::move(refusal));
                auto place = admission.Open(*caller, call, "");
                if (!place.ok()) return new Refused({.status = place.status()});
                return new ReflectionReactor(descriptors_, admission, call, *context,
                                             *std::move(place));
              }));
    }
  }

 private:
  const Descriptors descriptors_;
};

constexpr const char* kServices[] = {"nibble.v1.Coordinator", "nibble.v1.Access",
                                     "nibble.v1.WorkerLink"};
// A connection whose handshake takes longer is closed.
constexpr int kHandshakeMs = 10'000;
// Write buffer of a stream that is not being read; gRPC's default is 64 KiB.
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

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    Controller& controller, const ServerOptions& options) {
  const std::shared_ptr<const Credentials> credentials =
      options.credentials == nullptr ? Credentials::Insecure() : options.credentials;
  const bool tls = credentials->secure();
  NIBBLE_RETURN_IF_ERROR(
      CheckListen(options.listen, options.insecure, tls && options.authenticator != nullptr));
  auto parts = std::make_unique<Parts>(controller, options, tls);
  parts->coordinator =
      MakeCoordinatorService(controller, parts->admission, options.service, credentials);
  parts->access = MakeAccessService(parts->admission);
  parts->worker_link = MakeWorkerLinkService(controller, parts->admission);
  std::vector<std::string> described(std::begin(kServices), std::end(kServices));
  described.push_back("grpc.health.v1.Health");
  parts->reflection = std::make_unique<ReflectionService>(parts->admission, std::move(described));
  std::set<std::string> healthy(std::begin(kServices), std::end(kServices));
  healthy.insert("");
  parts->health = std::make_shared<Health>(std::move(healthy));
  parts->health_service = MakeHealthService(parts->admission, parts->health);
  NIBBLE_RETURN_IF_ERROR(Open(options, tls, *parts));
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

CoordinatorServer::~CoordinatorServer() { Shutdown(0); }

int CoordinatorServer::port() const { return parts_->gate->port(); }

void CoordinatorServer::SetServing(bool serving) { parts_->health->Set(serving); }

void CoordinatorServer::Shutdown(int64_t grace_ms) {
  parts_->gate->StopAccepting();
  parts_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(grace_ms));
  parts_->server->Wait();
  parts_->admission.RecordCounts(/*end=*/true);
}

}  // namespace nibble
