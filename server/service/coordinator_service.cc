#include "server/service/coordinator_service.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/alarm.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/service/grpc_status.h"
#include "server/service/received.h"
#include "server/service/wait_reactor.h"
#include "server/service/watch_reactor.h"
#include "server/state/bounds.h"

namespace nibble {
namespace {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// A change that is under way. Whoever comes first answers it: the controller, or the time it has.
struct ChangeCall {
  std::atomic<bool> answered = false;
  grpc::Alarm alarm;
};

// Methods are added by hand, in place of the generated class, for their requests to be Received.
class CoordinatorService : public grpc::Service {
 public:
  CoordinatorService(Controller& controller, Admission& admission, const ServiceLimits& limits)
      : controller_(controller), admission_(admission), limits_(limits) {
#define NIBBLE_PATH(Verb) "/nibble.v1.Coordinator/" #Verb
#define NIBBLE_CHANGE(Verb)                                                     \
  AddUnary<v1::Verb##Request, v1::Verb##Response>(                              \
      NIBBLE_PATH(Verb), [this](auto& context, auto& request, auto& response) { \
        return Change(context, request, response);                              \
      });
#define NIBBLE_READ(Verb)                                                       \
  AddUnary<v1::Verb##Request, v1::Verb##Response>(                              \
      NIBBLE_PATH(Verb), [this](auto& context, auto& request, auto& response) { \
        return Read(context, request, response);                                \
      });
    NIBBLE_CHANGE(SubmitJob)
    NIBBLE_CHANGE(ForkJob)
    NIBBLE_CHANGE(PauseJob)
    NIBBLE_CHANGE(ResumeJob)
    NIBBLE_CHANGE(CheckpointJob)
    NIBBLE_CHANGE(CancelJob)
    NIBBLE_CHANGE(KillJob)
    NIBBLE_CHANGE(SetJobPriority)
    NIBBLE_CHANGE(SetJobRestartPolicy)
    NIBBLE_CHANGE(SetRecipe)
    NIBBLE_CHANGE(RollbackRecipe)
    NIBBLE_CHANGE(VerifyCheckpoint)
    NIBBLE_CHANGE(ExportCheckpoint)
    NIBBLE_CHANGE(PinCheckpoint)
    NIBBLE_CHANGE(UnpinCheckpoint)
    NIBBLE_CHANGE(DeleteCheckpoint)
    NIBBLE_CHANGE(AdoptJob)
    NIBBLE_CHANGE(RemoveOrphan)
    NIBBLE_CHANGE(DrainWorker)
    NIBBLE_CHANGE(UncordonWorker)
    NIBBLE_CHANGE(SetQueue)
    NIBBLE_CHANGE(DeleteQueue)
    NIBBLE_READ(ListJobs)
    NIBBLE_READ(DescribeJob)
    NIBBLE_READ(ListJobEvents)
    NIBBLE_READ(GetJobMetrics)
    NIBBLE_READ(GetRecipe)
    NIBBLE_READ(DiffRecipe)
    NIBBLE_READ(ListRecipeRevisions)
    NIBBLE_READ(ListRecipePresets)
    NIBBLE_READ(GetRecipeCost)
    NIBBLE_READ(ListCheckpoints)
    NIBBLE_READ(DescribeCheckpoint)
    NIBBLE_READ(ListOrphans)
    NIBBLE_READ(ListWorkers)
    NIBBLE_READ(DescribeWorker)
    NIBBLE_READ(ListQueues)
    AddUnary<v1::WaitJobRequest, v1::WaitJobResponse>(
        NIBBLE_PATH(WaitJob), [this](auto& context, auto& request, auto& response) {
          return AwaitJob(controller_, request.message, response, Admit(context, request));
        });
    AddStream<v1::WatchJobsRequest, v1::WatchJobsResponse>(
        NIBBLE_PATH(WatchJobs), [this](auto& context, auto& request) {
          return StreamWatch(controller_, request.message, Admit(context, request));
        });
    AddStream<v1::StreamLogsRequest, v1::StreamLogsResponse>(
        NIBBLE_PATH(StreamLogs), [this](auto& context, auto& request) {
          return StreamRankLogs(controller_, limits_.logs, open_logs_, request.message,
                                Admit(context, request));
        });
#undef NIBBLE_PATH
#undef NIBBLE_CHANGE
#undef NIBBLE_READ
  }

 private:
  // `path`: of the call; gRPC keeps the pointer.
  void Add(const char* path, grpc::internal::RpcMethod::RpcType type,
           grpc::internal::MethodHandler* handler) {
    AddMethod(new grpc::internal::RpcServiceMethod(path, type, nullptr));
    MarkMethodCallback(methods_++, handler);
  }

  template <class Request, class Response, class Serve>
  void AddUnary(const char* path, Serve serve) {
    Add(path, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::CallbackUnaryHandler<Received<Request>, Response>(
            [serve](CallbackServerContext* context, const Received<Request>* request,
                    Response* response) { return serve(*context, *request, *response); }));
  }

  template <class Request, class Response, class Serve>
  void AddStream(const char* path, Serve serve) {
    Add(path, grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::CallbackServerStreamingHandler<Received<Request>, Response>(
            [serve](CallbackServerContext* context, const Received<Request>* request) {
              return serve(*context, *request);
            }));
  }

  template <class Request>
  absl::Status Admit(const CallbackServerContext& context, const Received<Request>& request) {
    absl::Status status = admission_.Admit(context).status();
    return status.ok() ? request.status : status;
  }

  absl::Status CheckSize(const v1::SubmitJobRequest& request) const {
    const auto size = static_cast<int64_t>(request.spec_yaml().size());
    if (size <= limits_.spec_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("spec_yaml: ", size, " bytes; allowed: ", limits_.spec_bytes, " and fewer"));
  }
  template <class Request>
  absl::Status CheckSize(const Request&) const {
    return absl::OkStatus();
  }

  template <class Request, class Response>
  ServerUnaryReactor* Change(CallbackServerContext& context, const Received<Request>& request,
                             Response& response) {
    ServerUnaryReactor* const reactor = context.DefaultReactor();
    const absl::StatusOr<CallerIdentity> caller = admission_.Admit(context);
    absl::Status status = caller.status();
    if (status.ok()) status = request.status;
    if (status.ok()) status = CheckSize(request.message);
    // As a part of an update it would be refused, too, by a path that is not the request's.
    if (status.ok()) status = CheckBounds(request.message);
    if (!status.ok()) {
      reactor->Finish(ToGrpc(status));
      return reactor;
    }
    const auto call = std::make_shared<ChangeCall>();
    const int64_t most_ms = limits_.change_ms;
    call->alarm.Set(std::chrono::system_clock::now() + std::chrono::milliseconds(most_ms),
                    // The alarm keeps what it has called: the call, which owns it, is let go of.
                    [held = call, reactor, most_ms](bool is_time) mutable {
                      const auto call = std::move(held);
                      if (!is_time || call->answered.exchange(true)) return;
                      reactor->Finish(ToGrpc(absl::DeadlineExceededError(absl::StrCat(
                          "not durable within ", most_ms,
                          " ms; it may still become so: repeat it under its request id"))));
                    });
    controller_.Change<Response>(request.message, caller->author,
                                 [call, reactor, &response](absl::StatusOr<Response> answer) {
                                   if (call->answered.exchange(true)) return;
                                   if (answer.ok()) response = *std::move(answer);
                                   reactor->Finish(ToGrpc(answer.status()));
                                   call->alarm.Cancel();
                                 });
    return reactor;
  }

  template <class Request, class Response>
  ServerUnaryReactor* Read(CallbackServerContext& context, const Received<Request>& request,
                           Response& response) {
    ServerUnaryReactor* const reactor = context.DefaultReactor();
    absl::Status status = Admit(context, request);
    if (status.ok()) status = CheckBounds(request.message);
    if (status.ok()) {
      absl::StatusOr<Response> answer = controller_.Read(request.message);
      status = answer.status();
      if (answer.ok()) response = *std::move(answer);
    }
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  Controller& controller_;
  Admission& admission_;
  const ServiceLimits limits_;
  size_t methods_ = 0;
  const OpenStreams open_logs_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCoordinatorService(Controller& controller, Admission& admission,
                                                      const ServiceLimits& limits) {
  return std::make_unique<CoordinatorService>(controller, admission, limits);
}

}  // namespace nibble
