#include "server/service/watch_reactor.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/job_requests.pb.h"
#include "server/controller/controller.h"
#include "server/service/reactor_gate.h"
#include "server/service/wire.h"
#include "server/state/limits.h"

namespace nibble {
namespace {

class WatchReactor
    : public GatedStream<WatchReactor, grpc::ServerWriteReactor<v1::WatchJobsResponse>,
                         v1::WatchJobsResponse> {
 public:
  WatchReactor(Controller& controller, const v1::WatchJobsRequest& request, absl::Status status)
      : controller_(controller) {
    if (status.ok()) status = CheckBounds(request);
    std::shared_ptr<Watch> watch;
    if (status.ok()) {
      auto opened = controller.OpenWatch(
          request, [gate = gate()] { gate->Reach([](WatchReactor& self) { self.Take(); }); });
      status = opened.status();
      if (opened.ok()) watch = *std::move(opened);
    }
    gate()->Reach([&](WatchReactor& self) {
      self.watch_ = std::move(watch);
      if (status.ok()) {
        self.Pump();
      } else {
        self.End(status);
      }
    });
  }

 private:
  friend class GatedStream;

  // Requests the next message, which the watches' own thread makes, so that watches do not occupy
  // the threads of calls and reports.
  void Pump() {
    if (MayWrite() && watch_ != nullptr) controller_.AskWatch(watch_);
  }

  void Take() {
    if (ended() || watch_ == nullptr) return;
    const absl::Status status = watch_->status();
    // A watch that was cut off ends even while a write waits for its reader.
    if (!status.ok()) return End(status);
    if (!MayWrite()) return;
    Watch::Message next = watch_->Next();
    if (next == nullptr) return Pump();
    Write(std::move(next), watch_->phase() == Watch::Phase::kBegun);
  }

  void Leave() {
    if (watch_ != nullptr) controller_.CloseWatch(watch_);
  }

  Controller& controller_;
  std::shared_ptr<Watch> watch_;  // set once, with the gate's lock held
};

}  // namespace

grpc::ServerWriteReactor<v1::WatchJobsResponse>* StreamWatch(Controller& controller,
                                                             const v1::WatchJobsRequest& request,
                                                             const absl::Status& refused) {
  return new WatchReactor(controller, request, refused);
}

namespace {

class WaitReactor : public grpc::ServerUnaryReactor {
 public:
  WaitReactor(Controller& controller, const v1::WaitJobRequest& request,
              v1::WaitJobResponse& response, absl::Status status)
      : controller_(controller),
        gate_(std::make_shared<ReactorGate<WaitReactor>>(this)),
        response_(response) {
    job_.set_job(request.job());
    if (status.ok()) status = CheckBounds(request);
    const auto gate = gate_;
    if (!status.ok()) {
      gate->Reach([&status](WaitReactor& self) { self.End(status); });
      return;
    }
    const int64_t number = controller.Wait(request, [gate](const absl::Status& over) {
      gate->Reach([&over](WaitReactor& self) { self.End(over); });
    });
    // This reactor may be gone by now.
    bool waits = false;
    gate->Reach([&waits, number](WaitReactor& self) {
      self.wait_ = number;
      waits = !self.ended_;
    });
    if (!waits && number > 0) controller.EndWait(number);
  }

  void OnCancel() override {
    gate_->Reach([](WaitReactor& self) { self.End(absl::CancelledError("broken off")); });
  }

  void OnDone() override {
    if (wait_ > 0) controller_.EndWait(wait_);
    gate_->Close();
    delete this;
  }

 private:
  // With the gate's lock held.
  void End(absl::Status status) {
    if (std::exchange(ended_, true)) return;
    if (status.ok()) {
      auto now = controller_.Read(job_);
      status = now.status();
      if (now.ok()) *response_.mutable_job() = std::move(*now->mutable_job());
    }
    Finish(ToGrpc(status));
  }

  Controller& controller_;
  const std::shared_ptr<ReactorGate<WaitReactor>> gate_;
  v1::DescribeJobRequest job_;
  v1::WaitJobResponse& response_;
  // Guarded by the gate's lock.
  int64_t wait_ = 0;
  bool ended_ = false;
};

}  // namespace

grpc::ServerUnaryReactor* AwaitJob(Controller& controller, const v1::WaitJobRequest& request,
                                   v1::WaitJobResponse& response, const absl::Status& refused) {
  return new WaitReactor(controller, request, response, refused);
}

}  // namespace nibble
