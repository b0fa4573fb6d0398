#include "server/service/coordinator_service.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/service/grpc_status.h"
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

class CoordinatorService : public v1::Coordinator::CallbackService {
 public:
  CoordinatorService(Controller& controller, Admission& admission, const ServiceLimits& limits)
      : controller_(controller), admission_(admission), limits_(limits) {}

#define NIBBLE_CHANGE(Verb)                                                                  \
  ServerUnaryReactor* Verb(CallbackServerContext* context, const v1::Verb##Request* request, \
                           v1::Verb##Response* response) override {                          \
    return Change(*context, *request, *response);                                            \
  }
#define NIBBLE_READ(Verb)                                                                    \
  ServerUnaryReactor* Verb(CallbackServerContext* context, const v1::Verb##Request* request, \
                           v1::Verb##Response* response) override {                          \
    return Read(*context, *request, *response);                                              \
  }
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
  NIBBLE_READ(ListWorkers)
  NIBBLE_READ(DescribeWorker)
  NIBBLE_READ(ListQueues)
#undef NIBBLE_CHANGE
#undef NIBBLE_READ

  ServerUnaryReactor* WaitJob(CallbackServerContext* context, const v1::WaitJobRequest* request,
                              v1::WaitJobResponse* response) override {
    return AwaitJob(controller_, *request, *response, admission_.Admit(*context).status());
  }

  grpc::ServerWriteReactor<v1::WatchJobsResponse>* WatchJobs(
      CallbackServerContext* context, const v1::WatchJobsRequest* request) override {
    return StreamWatch(controller_, *request, admission_.Admit(*context).status());
  }

  grpc::ServerWriteReactor<v1::StreamLogsResponse>* StreamLogs(
      CallbackServerContext* context, const v1::StreamLogsRequest* request) override {
    return StreamRankLogs(controller_, limits_.logs, open_logs_, *request,
                          admission_.Admit(*context).status());
  }

 private:
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
  ServerUnaryReactor* Change(CallbackServerContext& context, const Request& request,
                             Response& response) {
    ServerUnaryReactor* const reactor = context.DefaultReactor();
    const absl::StatusOr<CallerIdentity> caller = admission_.Admit(context);
    absl::Status status = caller.status();
    if (status.ok()) status = CheckSize(request);
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
    controller_.Change<Response>(request, caller->author,
                                 [call, reactor, &response](absl::StatusOr<Response> answer) {
                                   if (call->answered.exchange(true)) return;
                                   if (answer.ok()) response = *std::move(answer);
                                   reactor->Finish(ToGrpc(answer.status()));
                                   call->alarm.Cancel();
                                 });
    return reactor;
  }

  template <class Request, class Response>
  ServerUnaryReactor* Read(CallbackServerContext& context, const Request& request,
                           Response& response) {
    ServerUnaryReactor* const reactor = context.DefaultReactor();
    absl::Status status = admission_.Admit(context).status();
    if (status.ok()) status = CheckBounds(request);
    if (status.ok()) {
      absl::StatusOr<Response> answer = controller_.Read(request);
      status = answer.status();
      if (answer.ok()) response = *std::move(answer);
    }
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  Controller& controller_;
  Admission& admission_;
  const ServiceLimits limits_;
  const OpenStreams open_logs_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCoordinatorService(Controller& controller, Admission& admission,
                                                      const ServiceLimits& limits) {
  return std::make_unique<CoordinatorService>(controller, admission, limits);
}

}  // namespace nibble
