#include "server/service/worker_link_service.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/listen_address.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "proto/nibble/v1/worker_link.pb.h"
#include "server/service/reactor_gate.h"
#include "server/service/received.h"

namespace nibble {
namespace {

// Whether the peer, as gRPC names it without its port, is this machine.
bool IsLocal(const std::string& peer) {
  if (absl::StartsWith(peer, "ipv4:")) return absl::StartsWith(peer, "ipv4:127.");
  // gRPC writes brackets as in URIs.
  if (absl::StartsWith(peer, "ipv6:")) return peer == "ipv6:[::1]" || peer == "ipv6:%5B::1%5D";
  return true;  // a socket of this machine
}

// Others are sent to the addresses that a worker names: they have to be addresses, and not their
// own machines.
absl::Status CheckNamed(const char* field, const std::string& address, const std::string& peer) {
  const absl::StatusOr<ListenAddress> named = ParseNamedAddress(field, address);
  if (!named.ok()) return named.status();
  if (!named->loopback || IsLocal(peer)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field, ": '", address, "' is loopback, and the worker connects from ", peer,
      "; allowed: host:port at which other machines reach it (nibble-worker --address)"));
}

class LinkReactor
    : public GatedStream<LinkReactor,
                         grpc::ServerBidiReactor<Received<v1::ConnectRequest>, v1::ConnectResponse>,
                         v1::ConnectResponse> {
 public:
  LinkReactor(Controller& controller, std::string peer, absl::Status status)
      : controller_(controller), peer_(std::move(peer)) {
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
    absl::Status status = report_.status;
    if (status.ok() && report_.message.has_identity()) {
      status = CheckAddresses(report_.message.identity(), peer_);
    }
    if (!status.ok()) {
      gate()->Reach([&status](LinkReactor& self) { self.End(status); });
      return;
    }
    controller_.Report(session_, report_.message, [gate = gate()](const absl::Status& status) {
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
  const std::string peer_;
  std::shared_ptr<WorkerSession> session_;  // set once, with the gate's lock held
  Received<v1::ConnectRequest> report_;     // of the read under way, or the report being taken
  // Guarded by the gate's lock.
  bool reported_ = false;  // the controller knows whose stream it is
  bool news_ = false;
};

class WorkerLinkService : public grpc::Service {
 public:
  WorkerLinkService(Controller& controller, Admission& admission) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        "/nibble.v1.WorkerLink/Connect", grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodCallback(
        0,
        new grpc::internal::CallbackBidiHandler<Received<v1::ConnectRequest>, v1::ConnectResponse>(
            [&controller, &admission](grpc::CallbackServerContext* context) {
              const absl::StatusOr<CallerIdentity> caller = admission.Admit(*context);
              return new LinkReactor(controller, caller.ok() ? caller->peer : "", caller.status());
            }));
  }
};

}  // namespace

absl::Status CheckAddresses(const v1::WorkerIdentity& identity, const std::string& peer) {
  absl::Status status = CheckNamed("identity.address", identity.address(), peer);
  if (!status.ok() || identity.http_address().empty()) return status;
  return CheckNamed("identity.http_address", identity.http_address(), peer);
}

std::unique_ptr<grpc::Service> MakeWorkerLinkService(Controller& controller, Admission& admission) {
  return std::make_unique<WorkerLinkService>(controller, admission);
}

}  // namespace nibble
