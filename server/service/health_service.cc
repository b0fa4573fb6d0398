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

bool Health::serving() const {
  const MutexLock lock(&mutex_);
  return serving_;
}

void Health::Set(bool serving) {
  std::vector<std::function<void()>> watches;
  {
    const MutexLock lock(&mutex_);
    serving_ = serving;
    for (const auto& [number, changed] : watches_) watches.push_back(changed);
  }
  for (const auto& changed : watches) changed();
}

int64_t Health::Watch(std::function<void()> changed) {
  const MutexLock lock(&mutex_);
  if (watches_.size() >= kWatches) return 0;
  watches_.emplace(++last_, std::move(changed));
  return last_;
}

void Health::EndWatch(int64_t number) {
  const MutexLock lock(&mutex_);
  watches_.erase(number);
}

namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
constexpr char kWatch[] = "/grpc.health.v1.Health/Watch";

HealthCheckResponse::ServingStatus StatusOf(const Health& health) {
  return health.serving() ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
}

class HealthWatch : public GatedStream<HealthWatch, grpc::ServerWriteReactor<HealthCheckResponse>,
                                       HealthCheckResponse> {
 public:
  HealthWatch(grpc::CallbackServerContext& context, std::shared_ptr<Health> health,
              const std::string& service)
      : GatedStream(context), health_(std::move(health)), known_(health_->Knows(service)) {
    const auto gate = gate_;
    gate->Reach(&HealthWatch::Begin, health_->Watch([gate] { gate->Reach(&HealthWatch::Pump); }));
  }

 private:
  friend class GatedStream;

  void Begin(int64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    number_ = number;
    if (number == 0) {
      return End(absl::ResourceExhaustedError(
          absl::StrCat("health watches: more are open than allowed: ", Health::kWatches)));
    }
    Pump();
  }

  // Writes the present status, unless it was written last.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    const auto status = known_ ? StatusOf(*health_) : HealthCheckResponse::SERVICE_UNKNOWN;
    if (!MayWrite() || status == written_) return;
    written_ = status;
    HealthCheckResponse response;
    response.set_status(status);
    Write(std::move(response));
  }

  void Leave() { health_->EndWatch(number_); }

  const std::shared_ptr<Health> health_;
  const bool known_;
  int64_t number_ = 0;  // set once, by Begin
  HealthCheckResponse::ServingStatus written_ ABSL_GUARDED_BY(gate_->mutex) =
      HealthCheckResponse::UNKNOWN;
};

class HealthService : public AdmittedService {
 public:
  HealthService(Admission& admission, std::shared_ptr<Health> health)
      : AdmittedService(admission), health_(std::move(health)) {
    Add(kCheck, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::CallbackUnaryHandler<HealthCheckRequest, HealthCheckResponse>(
            [this](grpc::CallbackServerContext* context, const HealthCheckRequest* request,
                   HealthCheckResponse* response) {
              return Check(*context, *request, *response);
            }));
    Add(kWatch, grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::CallbackServerStreamingHandler<HealthCheckRequest, HealthCheckResponse>(
            [this](grpc::CallbackServerContext* context, const HealthCheckRequest* request) {
              return Watch(*context, *request);
            }));
  }

 private:
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext& context,
                                  const HealthCheckRequest& request,
                                  HealthCheckResponse& response) {
    Refusal refusal;
    if (!this->admission().AdmitAnybody(context, kCheck, refusal)) {
      return new RefusedCall<grpc::ServerUnaryReactor>(std::move(refusal));
    }
    grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
    response.set_status(StatusOf(*health_));
    reactor->Finish(health_->Knows(request.service())
                        ? grpc::Status::OK
                        : ToGrpc(absl::NotFoundError("service: there is none of this name")));
    return reactor;
  }

  grpc::ServerWriteReactor<HealthCheckResponse>* Watch(grpc::CallbackServerContext& context,
                                                       const HealthCheckRequest& request) {
    Refusal refusal;
    if (!this->admission().AdmitAnybody(context, kWatch, refusal)) {
      return new RefusedCall<grpc::ServerWriteReactor<HealthCheckResponse>>(std::move(refusal));
    }
    return new HealthWatch(context, health_, request.service());
  }

  const std::shared_ptr<Health> health_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeHealthService(Admission& admission,
                                                 std::shared_ptr<Health> health) {
  return std::make_unique<HealthService>(admission, std::move(health));
}

}  // namespace nibble
