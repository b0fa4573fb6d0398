// The base of the coordinator's services: every call passes Admission before a handler sees it. A
// refused call ends with its refusal, and no code of its handler runs.
//
// Services register their methods by hand instead of deriving from generated classes, so that
// requests are Received (wire.h).
//
// Ownership: borrows the admission, which outlives every call. Thread-safety: as gRPC requires.
#ifndef NIBBLE_SERVER_SERVICE_ADMITTED_SERVICE_H_
#define NIBBLE_SERVER_SERVICE_ADMITTED_SERVICE_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message.h"
#include "grpcpp/alarm.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/message_allocator.h"
#include "grpcpp/support/server_callback.h"
#include "server/service/admission.h"
#include "server/service/wire.h"

namespace nibble {

// A unary call's request, which outlives the call.
template <class Request>
struct Requested {
  const Request& message;
  const absl::Status& status;  // as of Received
};

// Allocates the messages of a call for gRPC's handler of every type.
template <class Request, class Response>
class CallMessages : public grpc::MessageAllocator<AnyReceived, AnyResponse> {
 public:
  grpc::MessageHolder<AnyReceived, AnyResponse>* AllocateMessages() override { return new Holder; }

 private:
  class Holder : public grpc::MessageHolder<AnyReceived, AnyResponse> {
   public:
    Holder() {
      set_request(&received_);
      set_response(&answer_);
    }
    void Release() override { delete this; }
    // The request is not used any more, and its call lasts.
    void FreeRequest() override { Request().Swap(&request_); }

   private:
    Request request_;
    Response response_;
    AnyReceived received_ = {.message = &request_, .status = {}};
    AnyResponse answer_ = {.message = &response_};
  };
};

// A call that ends with its refusal, in its turn.
template <class Reactor>
class RefusedCall final : public Reactor {
 public:
  explicit RefusedCall(Refusal refusal) : refusal_(std::move(refusal)) {
    if (refusal_.after_ms == 0) {
      this->Finish(ToGrpc(refusal_.status));
      return;
    }
    alarm_.Set(std::chrono::system_clock::now() + std::chrono::milliseconds(refusal_.after_ms),
               [this](bool /*is_time*/) { this->Finish(ToGrpc(refusal_.status)); });
  }

  // The caller has given it up: its memory is free at once, and its turn stays taken.
  void OnCancel() override { alarm_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  const Refusal refusal_;
  grpc::Alarm alarm_;
};

class AdmittedService : public grpc::Service {
 protected:
  explicit AdmittedService(Admission& admission) : admission_(admission) {}

  Admission& admission() { return admission_; }

  // `path`: of the call; gRPC keeps the pointer.
  void Add(const char* path, grpc::internal::RpcMethod::RpcType type,
           grpc::internal::MethodHandler* handler) {
    AddMethod(new grpc::internal::RpcServiceMethod(path, type, nullptr));
    MarkMethodCallback(methods_++, handler);
  }

  // serve(context, caller, Requested<Request>, response) returns the call's reactor.
  template <class Request, class Response, class Serve>
  void AddUnary(const char* path, Serve serve) {
    using Handler = grpc::internal::CallbackUnaryHandler<AnyReceived, AnyResponse>;
    auto* const handler = new Handler(
        [this, path, serve](grpc::CallbackServerContext* context, const AnyReceived* request,
                            AnyResponse* response) -> grpc::ServerUnaryReactor* {
          Refusal refusal;
          const std::optional<CallerIdentity> caller = admission_.Admit(
              *context, path, request->status.ok() ? request->message : nullptr, refusal);
          if (!caller) {
            context->GetRpcAllocatorState()->FreeRequest();
            return new RefusedCall<grpc::ServerUnaryReactor>(std::move(refusal));
          }
          const Requested<Request> received = {static_cast<const Request&>(*request->message),
                                               request->status};
          return serve(*context, *caller, received, static_cast<Response&>(*response->message));
        });
    static CallMessages<Request, Response> allocator;
    handler->SetMessageAllocator(&allocator);
    Add(path, grpc::internal::RpcMethod::NORMAL_RPC, handler);
  }

  // serve(context, caller, received, place) returns the call's reactor, which keeps `place`, and
  // ends with it, until it is done. `most`: of one caller, as for Admission::Open.
  template <class Request, class Response, class Serve>
  void AddStream(const char* path, Serve serve, int most = 0) {
    using Handler = grpc::internal::CallbackServerStreamingHandler<Received<Request>, Response>;
    Add(path, grpc::internal::RpcMethod::SERVER_STREAMING,
        new Handler([this, path, serve, most](
                        grpc::CallbackServerContext* context,
                        const Received<Request>* request) -> grpc::ServerWriteReactor<Response>* {
          using Refused = RefusedCall<grpc::ServerWriteReactor<Response>>;
          Refusal refusal;
          const std::optional<CallerIdentity> caller = admission_.Admit(
              *context, path, request->status.ok() ? &request->message : nullptr, refusal);
          if (!caller) {
            // gRPC's own copy of the request, which it keeps as long as the call.
            const_cast<Received<Request>*>(request)->message = Request();
            return new Refused(std::move(refusal));
          }
          absl::StatusOr<std::shared_ptr<OpenCall>> place =
              admission_.Open(*caller, path, SubjectOf(request->message), most);
          if (!place.ok()) return new Refused({.status = place.status()});
          return serve(*context, *caller, *request, *std::move(place));
        }));
  }

 private:
  Admission& admission_;
  size_t methods_ = 0;
};

}  // namespace nibble

#endif  // NIBBLE_SERVER_SERVICE_ADMITTED_SERVICE_H_
