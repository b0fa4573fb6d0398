#include "server/service/services.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "google/protobuf/message.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/message_allocator.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/controller/controller.h"
#include "server/service/admission.h"
#include "server/service/admitted_service.h"
#include "server/service/log_reactor.h"
#include "server/service/reactor_gate.h"
#include "server/service/watch_reactor.h"
#include "server/service/wire.h"
#include "server/service/worker_addresses.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

using google::protobuf::Message;
using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

// The caller's id of a change; empty if the request has none.
std::string RequestIdOf(const Message& request) {
  const auto* const field = request.GetDescriptor()->FindFieldByName("request_id");
  return field == nullptr ? "" : request.GetReflection()->GetString(request, field);
}

constexpr int kLogShare = 4;

absl::Status Stopping() {
  return absl::UnavailableError(
      "the coordinator is stopping; repeat the change under its request id");
}

class CoordinatorService : public AdmittedService {
 public:
  CoordinatorService(Controller& controller, Admission& admission, const ServiceLimits& limits,
                     std::shared_ptr<const Credentials> to_workers, OpenStreams logs,
                     std::shared_ptr<OpenChanges> changes)
      : AdmittedService(admission),
        controller_(controller),
        limits_(limits),
        to_workers_(std::move(to_workers)),
        open_logs_(std::move(logs)),
        open_changes_(std::move(changes)) {
#define NIBBLE_PATH(Verb) "/nibble.v1.Coordinator/" #Verb
#define NIBBLE_CHANGE(Verb)                                                                   \
  AddUnary<v1::Verb##Request, v1::Verb##Response>(                                            \
      NIBBLE_PATH(Verb), [this](auto& context, auto& caller, auto& request, auto& response) { \
        return Change(context, caller, NIBBLE_PATH(Verb), request.message, request.status,    \
                      response);                                                              \
      });
#define NIBBLE_READ(Verb)                                                                     \
  AddUnary<v1::Verb##Request, v1::Verb##Response>(                                            \
      NIBBLE_PATH(Verb), [this](auto& context, auto& caller, auto& request, auto& response) { \
        return Read(context, caller, request, response);                                      \
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
    NIBBLE_CHANGE(RestoreCheckpoint)
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
    NIBBLE_READ(ListTrash)
    NIBBLE_READ(ListDeletions)
    NIBBLE_READ(ListOrphans)
    NIBBLE_READ(ListWorkers)
    NIBBLE_READ(DescribeWorker)
    NIBBLE_READ(ListQueues)
    AddUnary<v1::WaitJobRequest, v1::WaitJobResponse>(
        NIBBLE_PATH(WaitJob), [this](auto& context, auto& caller, auto& request, auto& response) {
          auto place =
              this->admission().Open(caller, NIBBLE_PATH(WaitJob), SubjectOf(request.message));
          if (place.ok()) {
            return AwaitJob(controller_, request.message, ViewOf(caller), response, request.status,
                            *std::move(place));
          }
          ServerUnaryReactor* const reactor = context.DefaultReactor();
          reactor->Finish(ToGrpc(place.status()));
          return reactor;
        });
    AddStream<v1::WatchJobsRequest, v1::WatchJobsResponse>(
        NIBBLE_PATH(WatchJobs),
        [this](auto& context, auto& caller, auto& request, std::shared_ptr<OpenCall> place) {
          return StreamWatch(context, controller_, request.message, ViewOf(caller), request.status,
                             std::move(place));
        });
    AddStream<v1::StreamLogsRequest, v1::StreamLogsResponse>(
        NIBBLE_PATH(StreamLogs),
        [this](auto& context, auto& /*caller*/, auto& request, std::shared_ptr<OpenCall> place) {
          return StreamRankLogs(context, controller_, limits_.logs, open_logs_, to_workers_,
                                request.message, request.status, std::move(place));
        },
        // There are few, so one caller gets a part of them.
        std::max(1, limits_.logs.streams / kLogShare));
#undef NIBBLE_PATH
#undef NIBBLE_CHANGE
#undef NIBBLE_READ
  }

 private:
  static ProjectView ViewOf(const CallerIdentity& caller) {
    return ProjectView(caller.access.projects);
  }

  absl::Status CheckSize(const Message& request) const {
    const auto* const submit =
        google::protobuf::DynamicCastToGenerated<v1::SubmitJobRequest>(&request);
    const auto size = submit == nullptr ? 0 : static_cast<int64_t>(submit->spec_yaml().size());
    if (size <= limits_.spec_bytes) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("spec_yaml: ", size, " bytes; allowed: ", limits_.spec_bytes, " and fewer"));
  }

  // `status`: as of Received.
  ServerUnaryReactor* Change(CallbackServerContext& context, const CallerIdentity& caller,
                             const char* path, const Message& request, absl::Status status,
                             Message& response) {
    ServerUnaryReactor* const reactor = context.DefaultReactor();
    // Of the request: its message may be gone when the change is answered.
    const auto record = [this, caller, path, subject = status.ok() ? SubjectOf(request) : "",
                         id = RequestIdOf(request)](const absl::Status& ended,
                                                    const Message* answer) {
      const std::string made = subject.empty() && answer != nullptr ? SubjectOf(*answer) : subject;
      admission().Record(caller, path, made, id, ended);
    };
    if (status.ok()) status = CheckSize(request);
    // Checked here although updates are checked, too, so that errors name fields of the request.
    if (status.ok()) status = CheckBounds(request);
    if (!status.ok()) {
      record(status, nullptr);
      reactor->Finish(ToGrpc(status));
      return reactor;
    }
    const auto call = std::make_shared<ChangeCall>();
    const int64_t most_ms = limits_.change_ms;
    const bool taken = open_changes_->Add(
        call, std::chrono::system_clock::now() + std::chrono::milliseconds(most_ms),
        // The alarm keeps its callback; releasing the call, which owns the alarm, avoids a cycle.
        [held = call, changes = open_changes_, reactor, most_ms, record](bool is_time) mutable {
          const auto call = std::move(held);
          changes->Remove(call);
          if (call->answered.exchange(true)) return;
          const absl::Status late =
              is_time ? absl::DeadlineExceededError(absl::StrCat(
                            "the change was not durable within ", most_ms,
                            " ms and may still become so; repeat it under its request id"))
                      : Stopping();
          record(late, nullptr);
          reactor->Finish(ToGrpc(late));
        });
    if (!taken) {
      record(Stopping(), nullptr);
      reactor->Finish(ToGrpc(Stopping()));
      return reactor;
    }
    // Not gRPC's response, which is released when the deadline answers.
    const std::shared_ptr<Message> answer(response.New());
    const auto done = [this, view = ViewOf(caller), call, reactor, answer, &response,
                       record](const absl::Status& status) {
      if (call->answered.exchange(true)) return;
      record(status, status.ok() ? answer.get() : nullptr);
      if (status.ok() && view.bound()) {
        controller_.Inspect([&](const State& shown) { view.Redact(shown, *answer); });
      }
      if (status.ok()) response.GetReflection()->Swap(&response, answer.get());
      reactor->Finish(ToGrpc(status));
      call->alarm.Cancel();
    };
    controller_.requests().Change(request, caller.author, answer, done, caller.access.projects,
                                  caller.access.role == v1::ROLE_WORKER);
    return reactor;
  }

  template <class Request, class Response>
  ServerUnaryReactor* Read(CallbackServerContext& context, const CallerIdentity& caller,
                           const Requested<Request>& request, Response& response) {
    ServerUnaryReactor* const reactor = context.DefaultReactor();
    absl::Status status = request.status;
    if (status.ok()) status = CheckBounds(request.message);
    if (status.ok()) {
      absl::StatusOr<Response> answer = controller_.Read(request.message, ViewOf(caller));
      status = answer.status();
      if (answer.ok()) response = *std::move(answer);
    }
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  Controller& controller_;
  const ServiceLimits limits_;
  const std::shared_ptr<const Credentials> to_workers_;
  const OpenStreams open_logs_;
  const std::shared_ptr<OpenChanges> open_changes_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeCoordinatorService(Controller& controller, Admission& admission,
                                                      const ServiceLimits& limits,
                                                      std::shared_ptr<const Credentials> to_workers,
                                                      OpenStreams logs,
                                                      std::shared_ptr<OpenChanges> changes) {
  return std::make_unique<CoordinatorService>(controller, admission, limits, std::move(to_workers),
                                              std::move(logs), std::move(changes));
}

namespace {

constexpr char kConnectCall[] = "/nibble.v1.WorkerLink/Connect";

class LinkReactor
    : public GatedStream<LinkReactor,
                         grpc::ServerBidiReactor<Received<v1::ConnectRequest>, v1::ConnectResponse>,
                         v1::ConnectResponse> {
 public:
  LinkReactor(grpc::CallbackServerContext& context, Controller& controller, Admission& admission,
              const WorkerAddresses& addresses, CallerIdentity caller)
      : GatedStream(context),
        controller_(controller),
        admission_(admission),
        addresses_(addresses),
        caller_(std::make_shared<const CallerIdentity>(std::move(caller))) {
    auto place = admission.Open(*caller_, kConnectCall, absl::StrCat("worker ", caller_->author));
    absl::Status status = place.status();
    if (place.ok()) place_ = *std::move(place);
    std::shared_ptr<WorkerSession> session;
    if (status.ok()) {
      auto opened = controller.sessions().Open(
          [gate = gate_] { gate->Reach(&LinkReactor::HandleChanged); },
          [gate = gate_](const absl::Status& why) { gate->Reach(&LinkReactor::End, why); },
          [&admission, caller = caller_](const std::string& subject, const absl::Status& why) {
            admission.Record(*caller, kConnectCall, subject, "", why, /*refused=*/true);
          });
      status = opened.status();
      if (opened.ok()) session = *std::move(opened);
    }
    const std::shared_ptr<OpenCall> kept = place_;
    const auto gate = gate_;
    gate->Reach(&LinkReactor::Begin, std::move(session), status);
    // This reactor may be gone by now.
    if (kept == nullptr) return;
    kept->EndWith([gate](const absl::Status& why) { gate->Reach(&LinkReactor::End, why); });
  }

  void OnReadDone(bool ok) override {
    // A daemon that disconnected is lost only when its lease expires.
    if (!ok) return gate_->Reach(&LinkReactor::End, absl::OkStatus());
    const absl::Status status = CheckIdentity();
    if (!status.ok()) return gate_->Reach(&LinkReactor::End, status);
    controller_.reports().Take(
        session_, report_.message,
        [gate = gate_, &admission = admission_, caller = caller_](const absl::Status& taken) {
          // A report that breaks a bound; others end the stream because of the cluster's state.
          if (absl::IsInvalidArgument(taken)) {
            admission.Record(*caller, kConnectCall, absl::StrCat("worker ", caller->author), "",
                             taken, /*refused=*/true);
          }
          gate->Reach(&LinkReactor::HandleTaken, taken);
        });
  }

 private:
  friend class GatedStream;

  // Whether the report is of the worker that the caller is, at addresses that a worker may have.
  // Refusals and the first report are audited.
  absl::Status CheckIdentity() {
    if (!report_.status.ok()) {
      admission_.Record(*caller_, kConnectCall, absl::StrCat("worker ", caller_->author), "",
                        report_.status, /*refused=*/true);
      return report_.status;
    }
    absl::Status status = admission_.CheckStillValid(*caller_);
    const bool named = report_.message.has_identity();
    const std::string& name = report_.message.identity().name();
    const absl::Status is_name = named ? CheckName("identity.name", name) : absl::OkStatus();
    if (status.ok()) status = is_name;
    if (status.ok() && named) {
      status = addresses_.Check(report_.message.identity(), caller_->peer);
    }
    if (status.ok() && caller_->authenticated && named && name != caller_->author) {
      status = absl::PermissionDeniedError(absl::StrCat(
          "identity.name: '", name, "', and the caller is worker ", caller_->author,
          "; the name must be that of its certificate or token (nibble-worker --name)"));
    }
    const bool first = named && !std::exchange(recorded_, recorded_ || named);
    if (first || !status.ok()) {
      const std::string& subject = is_name.ok() && named ? name : caller_->author;
      admission_.Record(*caller_, kConnectCall, absl::StrCat("worker ", subject), "", status,
                        /*refused=*/!status.ok());
    }
    return status;
  }

  void Begin(std::shared_ptr<WorkerSession> session, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    session_ = std::move(session);
    if (!status.ok()) return End(status);
    StartRead(&report_);
  }

  // The report's consequences are durable, or it was refused.
  void HandleTaken(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (!status.ok()) return End(status);
    if (ended()) return;
    reported_ = true;
    HandleChanged();
    StartRead(&report_);
  }

  // The desired state may have changed.
  void HandleChanged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    changed_ = true;
    Pump();
  }

  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (!MayWrite() || !reported_ || !changed_) return;
    changed_ = false;
    Write(controller_.reports().Desired(session_));
  }

  void Leave() {
    if (session_ != nullptr) controller_.sessions().Close(session_);
  }

  Controller& controller_;
  Admission& admission_;
  const WorkerAddresses& addresses_;
  const std::shared_ptr<const CallerIdentity> caller_;
  std::shared_ptr<OpenCall> place_;         // set by the constructor; null: the caller is refused
  bool recorded_ = false;                   // the worker's connection is in the audit log
  std::shared_ptr<WorkerSession> session_;  // set by Begin, before any report
  Received<v1::ConnectRequest> report_;     // being read, or being processed
  // The controller knows the worker of this stream.
  bool reported_ ABSL_GUARDED_BY(gate_->mutex) = false;
  // The desired state may differ from the one written last.
  bool changed_ ABSL_GUARDED_BY(gate_->mutex) = false;
};

class WorkerLinkService : public AdmittedService {
 public:
  WorkerLinkService(Controller& controller, Admission& admission, WorkerAddresses addresses)
      : AdmittedService(admission), addresses_(std::move(addresses)) {
    using Handler =
        grpc::internal::CallbackBidiHandler<Received<v1::ConnectRequest>, v1::ConnectResponse>;
    Add(kConnectCall, grpc::internal::RpcMethod::BIDI_STREAMING,
        new Handler(
            [this, &controller, &admission](grpc::CallbackServerContext* context)
                -> grpc::ServerBidiReactor<Received<v1::ConnectRequest>, v1::ConnectResponse>* {
              Refusal refusal;
              std::optional<CallerIdentity> caller =
                  admission.Admit(*context, kConnectCall, nullptr, refusal);
              if (caller) {
                return new LinkReactor(*context, controller, admission, addresses_,
                                       *std::move(caller));
              }
              using Reactor =
                  grpc::ServerBidiReactor<Received<v1::ConnectRequest>, v1::ConnectResponse>;
              return new RefusedCall<Reactor>(std::move(refusal));
            }));
  }

 private:
  const WorkerAddresses addresses_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerLinkService(Controller& controller, Admission& admission,
                                                     WorkerAddresses addresses) {
  return std::make_unique<WorkerLinkService>(controller, admission, std::move(addresses));
}

}  // namespace nibble
