#include "server/service/health_service.h"

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/grpc/health/v1/health.pb.h"
#include "server/service/admission.h"
#include "server/service/admitted_service.h"
#include "server/service/reactor_gate.h"
#include "server/service/wire.h"

namespace nibble {

Health::Status Health::Now() const {
  const MutexLock lock(&mutex_);
  return now_;
}

void Health::SetServing(bool serving) { Set(serving, /*stopping=*/false); }

void Health::Stop() { Set(/*serving=*/false, /*stopping=*/true); }

void Health::Set(bool serving, bool stopping) {
  std::vector<std::function<void()>> followers;
  {
    const MutexLock lock(&mutex_);
    now_.stopping |= stopping;
    now_.serving = serving && !now_.stopping;
    for (const auto& [number, watch] : watches_) {
      if (watch.changed) followers.push_back(watch.changed);
    }
  }
  for (const auto& changed : followers) changed();
}

absl::StatusOr<int64_t> Health::Open(const std::string& address) {
  const MutexLock lock(&mutex_);
  if (watches_.size() >= limits_.all) {
    return absl::ResourceExhaustedError(
        absl::StrCat("health watches: ", watches_.size(), " are open; allowed: ", limits_.all));
  }
  size_t& of_address = by_address_[address];
  if (of_address >= limits_.of_address) {
    return absl::ResourceExhaustedError(absl::StrCat("health watches of ", address, ": ",
                                                     of_address,
                                                     " are open; allowed: ", limits_.of_address));
  }
  ++of_address;
  watches_.emplace(++last_, Watch{.address = address, .changed = nullptr});
  return last_;
}

void Health::Follow(int64_t watch, std::function<void()> changed) {
  const MutexLock lock(&mutex_);
  const auto found = watches_.find(watch);
  if (found != watches_.end()) found->second.changed = std::move(changed);
}

void Health::Close(int64_t watch) {
  const MutexLock lock(&mutex_);
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  const auto of_address = by_address_.find(found->second.address);
  if (--of_address->second == 0) by_address_.erase(of_address);
  watches_.erase(found);
}

namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kHealthCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kHealthWatch[] = "/grpc.health.v1.Health/Watch";

HealthCheckResponse::ServingStatus ServingStatusOf(const Health::Status& now) {
  return now.serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

class HealthWatch : public GatedStream<HealthWatch, grpc::ServerWriteReactor<HealthCheckResponse>,
                                       HealthCheckResponse> {
 public:
  // `watch`: of Health::Open; closed when the stream is over.
  HealthWatch(grpc::CallbackServerContext& context, std::shared_ptr<Health> health,
              const std::string& service, int64_t watch)
      : GatedStream(context),
        health_(std::move(health)),
        watch_(watch),
        known_(health_->Knows(service)) {
    const auto gate = gate_;
    health_->Follow(watch, [gate] { gate->Reach(&HealthWatch::Pump); });
    gate->Reach(&HealthWatch::Pump);
  }

 private:
  friend class GatedStream;

  // Writes the present status, unless it was written last; ends once the server stops.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (!MayWrite()) return;
    const Health::Status now = health_->Now();
    const auto status = known_ ? ServingStatusOf(now) : HealthCheckResponse::SERVICE_UNKNOWN;
    if (status == written_) {
      if (now.stopping) End(absl::UnavailableError("the server stops"));
      return;
    }
    written_ = status;
    HealthCheckResponse response;
    response.set_status(status);
    Write(std::move(response));
  }

  void Leave() { health_->Close(watch_); }

  const std::shared_ptr<Health> health_;
  const int64_t watch_;
  const bool known_;
  // UNKNOWN: none yet.
  HealthCheckResponse::ServingStatus written_ ABSL_GUARDED_BY(gate_->mutex) =
      HealthCheckResponse::UNKNOWN;
};

class HealthService : public AdmittedService {
 public:
  HealthService(Admission& admission, std::shared_ptr<Health> health)
      : AdmittedService(admission), health_(std::move(health)) {
    Add(kHealthCheck, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::CallbackUnaryHandler<Received<HealthCheckRequest>, HealthCheckResponse>(
            [this](grpc::CallbackServerContext* context,
                   const Received<HealthCheckRequest>* request, HealthCheckResponse* response) {
              return Check(*context, *request, *response);
            }));
    Add(kHealthWatch, grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::CallbackServerStreamingHandler<Received<HealthCheckRequest>,
                                                           HealthCheckResponse>(
            [this](grpc::CallbackServerContext* context,
                   const Received<HealthCheckRequest>* request) {
              return Watch(*context, *request);
            }));
  }

 private:
  // Calls `serve`, which returns the call's reactor, or the status that refuses it.
  template <class Reactor, class Serve>
  Reactor* Admitted(grpc::CallbackServerContext& context, const char* call,
                    const Received<HealthCheckRequest>& request, Serve serve) {
    Refusal refusal;
    const std::optional<CallerIdentity> caller = admission().AdmitAnybody(context, call, refusal);
    if (caller) {
      const absl::StatusOr<Reactor*> reactor =
          request.status.ok() ? serve(*caller) : absl::StatusOr<Reactor*>(request.status);
      if (reactor.ok()) return *reactor;
      refusal = admission().Refuse(*caller, call, reactor.status());
    }
    // gRPC's own copy of the request, which it keeps as long as the call.
    const_cast<Received<HealthCheckRequest>&>(request).message = HealthCheckRequest();
    return new RefusedCall<Reactor>(std::move(refusal));
  }

  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext& context,
                                  const Received<HealthCheckRequest>& request,
                                  HealthCheckResponse& response) {
    using Reactor = grpc::ServerUnaryReactor;
    const auto serve = [&](const CallerIdentity& /*caller*/) -> absl::StatusOr<Reactor*> {
      Reactor* const reactor = context.DefaultReactor();
      response.set_status(ServingStatusOf(health_->Now()));
      reactor->Finish(health_->Knows(request.message.service())
                          ? grpc::Status::OK
                          : ToGrpc(absl::NotFoundError("service: there is none of this name")));
      return reactor;
    };
    return Admitted<Reactor>(context, kHealthCheck, request, serve);
  }

  grpc::ServerWriteReactor<HealthCheckResponse>* Watch(
      grpc::CallbackServerContext& context, const Received<HealthCheckRequest>& request) {
    using Reactor = grpc::ServerWriteReactor<HealthCheckResponse>;
    const auto serve = [&](const CallerIdentity& caller) -> absl::StatusOr<Reactor*> {
      const absl::StatusOr<int64_t> watch = health_->Open(caller.peer);
      if (!watch.ok()) return watch.status();
      return new HealthWatch(context, health_, request.message.service(), *watch);
    };
    return Admitted<Reactor>(context, kHealthWatch, request, serve);
  }

  const std::shared_ptr<Health> health_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeHealthService(Admission& admission,
                                                 std::shared_ptr<Health> health) {
  return std::make_unique<HealthService>(admission, std::move(health));
}

}  // namespace nibble
