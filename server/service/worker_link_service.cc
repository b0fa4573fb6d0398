#include "server/service/worker_link_service.h"

#include <memory>
#include <utility>

#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/worker_link.grpc.pb.h"
#include "server/service/reactor_gate.h"

namespace nibble {
namespace {

class LinkReactor
    : public GatedStream<LinkReactor,
                         grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>,
                         v1::ConnectResponse> {
 public:
  LinkReactor(Controller& controller, absl::Status status) : controller_(controller) {
    std::shared_ptr<WorkerSession> session;
    if (status.ok()) {
      auto opened = controller.OpenSession(
          [gate = gate()] { gate->Reach([](LinkReactor& self) { self.Tell(); }); },
          [gate = gate()](const absl::Status& why) {
            gate->Reach([&why](LinkReactor& self) { self.End(why); });
          });
      status = opened.status();
      if (opened.ok()) session = *std::move(opened);
    }
    gate()->Reach([&](LinkReactor& self) {
      self.session_ = std::move(session);
      if (status.ok()) {
        self.StartRead(&self.report_);
      } else {
        self.End(status);
      }
    });
  }

  void OnReadDone(bool ok) override {
    if (!ok) {  // the daemon is done, or gone: its lease says which
      gate()->Reach([](LinkReactor& self) { self.End(absl::OkStatus()); });
      return;
    }
    controller_.Report(session_, report_, [gate = gate()](const absl::Status& status) {
      gate->Reach([&status](LinkReactor& self) { self.Taken(status); });
    });
  }

 private:
  friend class GatedStream;

  // The rest with the gate's lock held.

  void Taken(const absl::Status& status) {
    if (!status.ok()) return End(status);
    if (ended()) return;
    reported_ = true;
    Tell();
    StartRead(&report_);
  }

  void Tell() {
    news_ = true;
    Pump();
  }

  void Pump() {
    if (!MayWrite() || !reported_ || !news_) return;
    news_ = false;
    Write(controller_.Desired(session_));
  }

  void Leave() {
    if (session_ != nullptr) controller_.CloseSession(session_);
  }

  Controller& controller_;
  std::shared_ptr<WorkerSession> session_;  // set once, with the gate's lock held
  v1::ConnectRequest report_;               // of the read under way, or the report being taken
  // Guarded by the gate's lock.
  bool reported_ = false;  // the controller knows whose stream it is
  bool news_ = false;
};

class WorkerLinkService : public v1::WorkerLink::CallbackService {
 public:
  WorkerLinkService(Controller& controller, Admission& admission)
      : controller_(controller), admission_(admission) {}

  grpc::ServerBidiReactor<v1::ConnectRequest, v1::ConnectResponse>* Connect(
      grpc::CallbackServerContext* context) override {
    return new LinkReactor(controller_, admission_.Admit(*context).status());
  }

 private:
  Controller& controller_;
  Admission& admission_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeWorkerLinkService(Controller& controller, Admission& admission) {
  return std::make_unique<WorkerLinkService>(controller, admission);
}

}  // namespace nibble
