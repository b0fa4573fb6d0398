#include "server/service/watch_reactor.h"

#include <memory>
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

  // Every message is made in the watches' own thread, in its turn: the threads that carry calls and
  // reports are not kept by those who watch.
  void Pump() {
    if (MayWrite() && watch_ != nullptr) controller_.AskWatch(watch_);
  }

  void Take() {
    if (ended() || watch_ == nullptr) return;
    const absl::Status status = watch_->status();
    // A watch that was cut ends also while a write still waits for its reader.
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

}  // namespace nibble
