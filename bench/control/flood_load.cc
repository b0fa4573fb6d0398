#include "bench/control/flood_load.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bench/limits.h"
#include "grpcpp/alarm.h"
#include "grpcpp/generic/async_generic_service.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"

namespace nibble::bench {
namespace {

constexpr int kFloodNicer = 10;  // nice value above that of the measured processes

// How the calls ended.
struct FloodCounts {
  std::atomic<int64_t> served = 0, refused = 0, given_up = 0, unconnected = 0;
};

// Repeats a call until it is told to stop.
class Repeater {
 public:
  // `patience_ms`: as FloodSetting. `left`: repeaters that have not stopped yet.
  Repeater(v1::Coordinator::Stub& stub, const std::string& token, int patience_ms,
           const std::atomic<bool>& stop, FloodCounts& counts, std::atomic<int>& left)
      : stub_(stub),
        token_(token),
        patience_ms_(patience_ms),
        stop_(stop),
        counts_(counts),
        left_(left) {
    Call();
  }

 private:
  void Call() {
    context_ = As(token_);
    if (patience_ms_ > 0) {
      context_->set_deadline(std::chrono::system_clock::now() +
                             std::chrono::milliseconds(patience_ms_));
    }
    answer_.Clear();
    stub_.async()->ListJobs(context_.get(), &request_, &answer_,
                            [this](const grpc::Status& status) { HandleEnd(status); });
  }

  void HandleEnd(const grpc::Status& status) {
    const bool unconnected = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    ++(status.ok()                                                  ? counts_.served
       : unconnected                                                ? counts_.unconnected
       : status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ? counts_.given_up
                                                                    : counts_.refused);
    if (stop_) {
      --left_;
    } else if (unconnected) {
      // A call without a connection fails at once: repeating it at once would load this process
      // alone.
      pause_ = std::make_unique<grpc::Alarm>();
      pause_->Set(std::chrono::system_clock::now() + std::chrono::milliseconds(10),
                  [this](bool /*is_time*/) { Call(); });
    } else {
      Call();
    }
  }

  v1::Coordinator::Stub& stub_;
  const std::string& token_;
  const int patience_ms_;
  const std::atomic<bool>& stop_;
  FloodCounts& counts_;
  std::atomic<int>& left_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::Alarm> pause_;
  const v1::ListJobsRequest request_;
  v1::ListJobsResponse answer_;
};

// The bare server: any call is refused.
class RefuseAll : public grpc::CallbackGenericService {
  class Refused : public grpc::ServerGenericBidiReactor {
   public:
    Refused() { Finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "refused"}); }
    void OnDone() override { delete this; }
  };
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* /*context*/) override {
    return new Refused;
  }
};

TlsFiles FilesOf(const std::string& directory, const std::string& name) {
  return {.certificate = absl::StrCat(directory, "/", name, ".pem"),
          .key = absl::StrCat(directory, "/", name, "-key.pem"),
          .authority = directory + "/lab-ca.pem"};
}

}  // namespace

std::shared_ptr<grpc::Channel> ConnectTo(const std::string& target, const TlsFiles& files) {
  const auto credentials = Credentials::Make(files);
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(target, (*credentials)->ForChannelTo(PeerKind::kCoordinator),
                                   arguments);
}

std::unique_ptr<grpc::ClientContext> As(const std::string& token) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->AddMetadata("authorization", "Bearer " + token);
  return context;
}

int Flood(const FloodSetting& setting) {
  setpriority(PRIO_PROCESS, 0, std::min(getpriority(PRIO_PROCESS, 0) + kFloodNicer, 19));
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs;
  for (int i = 0; i < setting.connections; ++i) {
    stubs.push_back(
        v1::Coordinator::NewStub(ConnectTo(setting.target, FilesOf(setting.files, "client"))));
  }
  std::atomic<bool> stop = false;
  FloodCounts counts;
  std::atomic<int> left = setting.connections * setting.calls;
  std::vector<std::unique_ptr<Repeater>> repeaters;
  const auto start = std::chrono::steady_clock::now();
  for (const auto& stub : stubs) {
    for (int i = 0; i < setting.calls; ++i) {
      repeaters.push_back(std::make_unique<Repeater>(*stub, setting.token, setting.patience_ms,
                                                     stop, counts, left));
    }
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(setting.seconds));
  stop = true;
  while (left > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::printf("%lld %lld %lld %.3f\n", static_cast<long long>(counts.served),
              static_cast<long long>(counts.refused), static_cast<long long>(counts.given_up),
              Since(start));
  return 0;
}

int ServeBare(const FloodSetting& setting) {
  const auto credentials = Credentials::Make(FilesOf(setting.files, "coordinator"));
  RefuseAll service;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", (*credentials)->ForServer(), &port);
  builder.RegisterCallbackGenericService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::printf("%d\n", port);
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::duration<double>(setting.seconds));
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}

}  // namespace nibble::bench
