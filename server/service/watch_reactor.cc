#include "server/service/watch_reactor.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/controller.h"
#include "server/service/admission.h"
#include "server/service/reactor_gate.h"
#include "server/service/wire.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

class WatchReactor
    : public GatedStream<WatchReactor, grpc::ServerWriteReactor<v1::WatchJobsResponse>,
                         v1::WatchJobsResponse> {
 public:
  WatchReactor(grpc::CallbackServerContext& context, Controller& controller,
               const v1::WatchJobsRequest& request, ProjectView view, absl::Status status,
               std::shared_ptr<OpenCall> place)
      : GatedStream(context),
        controller_(controller),
        watches_(controller.watches()),
        view_(std::move(view)),
        place_(std::move(place)) {
    if (status.ok()) status = CheckBounds(request);
    if (status.ok()) status = CheckNamed(request);
    std::shared_ptr<Watch> watch;
    if (status.ok()) {
      auto opened =
          watches_.Open(request, [gate = gate_] { gate->Reach(&WatchReactor::WriteNext); });
      status = opened.status();
      if (opened.ok()) watch = *std::move(opened);
    }
    place_->EndWith(
        [gate = gate_](const absl::Status& why) { gate->Reach(&WatchReactor::End, why); });
    gate_->Reach(&WatchReactor::Begin, std::move(watch), status);
  }

 private:
  friend class GatedStream;

  // As if jobs of other projects were not there.
  absl::Status CheckNamed(const v1::WatchJobsRequest& request) const {
    if (!view_.bound()) return absl::OkStatus();
    return controller_.Inspect([&](const State& shown) {
      for (const std::string& job : request.jobs()) {
        if (view_.Shows(shown, job)) continue;
        return absl::NotFoundError(absl::StrCat("jobs: there is no '", job, "'"));
      }
      return absl::OkStatus();
    });
  }

  // The message as the caller sees it; null: it does not.
  Watch::Message Seen(Watch::Message message) const {
    if (!view_.bound()) return message;
    return controller_.Inspect([&](const State& shown) -> Watch::Message {
      if (!view_.Shows(shown, *message)) return nullptr;
      auto seen = std::make_shared<v1::WatchJobsResponse>(*message);
      view_.Redact(shown, *seen);
      return seen;
    });
  }

  void Begin(std::shared_ptr<Watch> watch, const absl::Status& status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    watch_ = std::move(watch);
    if (!status.ok()) return End(status);
    Pump();
  }

  // Requests the next message, which the watches' own thread makes, so that watches do not occupy
  // the threads of calls and reports.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (MayWrite() && watch_ != nullptr) watches_.RequestTurn(watch_);
  }

  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (ended() || watch_ == nullptr) return;
    const absl::Status status = watch_->status();
    // A watch that was cut off ends even while a write waits for its reader.
    if (!status.ok()) return End(status);
    if (!MayWrite()) return;
    Watch::Message next = watch_->Next();
    if (next != nullptr) next = Seen(std::move(next));
    if (next == nullptr) return Pump();
    Write(std::move(next), watch_->phase() == Watch::Phase::kBegun);
  }

  void Leave() {
    if (watch_ != nullptr) watches_.Close(watch_);
  }

  Controller& controller_;
  WatchFeed& watches_;
  const ProjectView view_;
  const std::shared_ptr<OpenCall> place_;
  std::shared_ptr<Watch> watch_;  // set once, by Begin
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchJobsResponse>* StreamWatch(grpc::CallbackServerContext& context,
                                                             Controller& controller,
                                                             const v1::WatchJobsRequest& request,
                                                             ProjectView view,
                                                             const absl::Status& refused,
                                                             std::shared_ptr<OpenCall> place) {
  return new WatchReactor(context, controller, request, std::move(view), refused, std::move(place));
}

namespace {

class WaitReactor : public grpc::ServerUnaryReactor {
 public:
  WaitReactor(Controller& controller, const v1::WaitJobRequest& request, ProjectView view,
              v1::WaitJobResponse& response, absl::Status status, std::shared_ptr<OpenCall> place)
      : controller_(controller),
        view_(std::move(view)),
        place_(std::move(place)),
        gate_(std::make_shared<ReactorGate<WaitReactor>>(this)),
        response_(response) {
    job_.set_job(request.job());
    if (status.ok()) status = CheckBounds(request);
    const auto gate = gate_;
    // Kept: this reactor, and its place with it, may be gone before the last line.
    const std::shared_ptr<OpenCall> kept = place_;
    if (!status.ok()) {
      gate->Reach(&WaitReactor::End, status);
      return;
    }
    const int64_t number = controller.watches().Wait(
        request, [gate](const absl::Status& over) { gate->Reach(&WaitReactor::End, over); });
    // This reactor may be gone by now.
    bool waits = false;
    gate->Reach(&WaitReactor::SetWait, number, waits);
    if (!waits && number > 0) controller.watches().EndWait(number);
    kept->EndWith([gate](const absl::Status& why) { gate->Reach(&WaitReactor::End, why); });
  }

  void OnCancel() override {
    gate_->Reach(&WaitReactor::End, absl::CancelledError("the caller cancelled the wait"));
  }

  void OnDone() override {
    int64_t wait = 0;
    gate_->Reach(&WaitReactor::GetWait, wait);
    if (wait > 0) controller_.watches().EndWait(wait);
    gate_->Close();
    delete this;
  }

 private:
  void SetWait(int64_t number, bool& waits) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    wait_ = number;
    waits = !ended_;
  }
  void GetWait(int64_t& number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    number = wait_;
  }

  void End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_->mutex) {
    if (std::exchange(ended_, true)) return;
    if (status.ok()) {
      auto now = controller_.Read(job_, view_);
      status = now.status();
      if (now.ok()) *response_.mutable_job() = std::move(*now->mutable_job());
    }
    Finish(ToGrpc(status));
  }

  Controller& controller_;
  const ProjectView view_;
  const std::shared_ptr<OpenCall> place_;
  const std::shared_ptr<ReactorGate<WaitReactor>> gate_;
  v1::DescribeJobRequest job_;
  v1::WaitJobResponse& response_;
  int64_t wait_ ABSL_GUARDED_BY(gate_->mutex) = 0;
  bool ended_ ABSL_GUARDED_BY(gate_->mutex) = false;
};

}  // namespace

grpc::ServerUnaryReactor* AwaitJob(Controller& controller, const v1::WaitJobRequest& request,
                                   ProjectView view, v1::WaitJobResponse& response,
                                   const absl::Status& refused, std::shared_ptr<OpenCall> place) {
  return new WaitReactor(controller, request, std::move(view), response, refused, std::move(place));
}

}  // namespace nibble
