#include "server/service/wait_reactor.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "server/service/grpc_status.h"
#include "server/service/reactor_gate.h"
#include "server/state/bounds.h"

namespace nibble {
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
    // This may be gone by now.
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
