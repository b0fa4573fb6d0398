#include "server/metrics/rpc_metrics.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_interceptor.h"

namespace nibble {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

class CallCounter : public grpc::experimental::Interceptor {
 public:
  CallCounter(CoordinatorMetrics& metrics, const ServerRpcInfo& call)
      : metrics_(metrics),
        method_(call.method()),
        stream_(call.type() != ServerRpcInfo::Type::UNARY) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const auto code = static_cast<absl::StatusCode>(methods->GetSendStatus().error_code());
      metrics_.RpcEnded(method_, code, stream_, watch_.seconds());
    }
    methods->Proceed();
  }

 private:
  CoordinatorMetrics& metrics_;
  const std::string method_;
  const bool stream_;
  const Stopwatch watch_;
};

class CallCounters : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  CallCounters(CoordinatorMetrics& metrics,
               std::function<void(const grpc::ServerContextBase&)> called)
      : metrics_(metrics), called_(std::move(called)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* call) override {
    called_(*call->server_context());
    return new CallCounter(metrics_, *call);
  }

 private:
  CoordinatorMetrics& metrics_;
  const std::function<void(const grpc::ServerContextBase&)> called_;
};

}  // namespace

void CountCalls(CoordinatorMetrics& metrics,
                std::function<void(const grpc::ServerContextBase&)> called,
                grpc::ServerBuilder& builder) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<CallCounters>(metrics, std::move(called)));
  builder.experimental().SetInterceptorCreators(std::move(creators));
}

}  // namespace nibble
