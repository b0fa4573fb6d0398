#include "server/service/watch_reactor.h"

#include <memory>
#include <optional>
#include <utility>

#include "server/service/reactor_gate.h"
#include "server/state/bounds.h"

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
          request, [gate = gate()] { gate->Reach([](WatchReactor& self) { self.Pump(); }); });
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

  void Pump() {
    if (ended() || watch_ == nullptr) return;
    // A watch that was cut ends also while a write still waits for its reader.
    const absl::Status status = watch_->status();
    if (!status.ok()) return End(status);
    if (!MayWrite()) return;
    std::optional<v1::WatchJobsResponse> next = watch_->Next();
    if (next) Write(*std::move(next));
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

}  // namespace nibble
