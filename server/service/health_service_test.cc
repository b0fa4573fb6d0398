#include "server/service/health_service.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/impl/client_unary_call.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/sync_stream.h"
#include "gtest/gtest.h"
#include "proto/grpc/health/v1/health.pb.h"
#include "server/access/audit_log.h"
#include "server/controller/testing.h"
#include "server/service/coordinator_server.h"

namespace nibble {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

// A call that hangs fails rather than the whole test.
constexpr std::chrono::seconds kHealthDeadline(60);

class HealthServiceTest : public testing::Test {
 protected:
  HealthServiceTest() { Serve({}); }

  void Serve(ServerOptions options) {
    server_.reset();
    auto audit = AuditLog::Open({.path = directory_.Path("audit.jsonl")});
    ASSERT_EQ(audit.status(), absl::OkStatus());
    audit_ = *std::move(audit);
    options.listen = "127.0.0.1:0";
    options.audit = audit_.get();
    auto server = CoordinatorServer::Start(coordinator_.controller(), options);
    ASSERT_EQ(server.status(), absl::OkStatus());
    server_ = *std::move(server);
    channel_ = grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->port()),
                                   grpc::InsecureChannelCredentials());
  }

  grpc::Status Check(const std::string& service, HealthCheckResponse& response) {
    const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Check",
                                           grpc::internal::RpcMethod::NORMAL_RPC, channel_);
    HealthCheckRequest request;
    request.set_service(service);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kHealthDeadline);
    return grpc::internal::BlockingUnaryCall(channel_.get(), method, &context, request, &response);
  }
  grpc::StatusCode CheckCode(const std::string& service) {
    HealthCheckResponse response;
    return Check(service, response).error_code();
  }

  struct OpenWatch {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader;

    // The next status; UNKNOWN at the end.
    HealthCheckResponse::ServingStatus Next() {
      HealthCheckResponse response;
      return reader->Read(&response) ? response.status() : HealthCheckResponse::UNKNOWN;
    }
  };
  std::unique_ptr<OpenWatch> Watch(const std::string& service = "") {
    const grpc::internal::RpcMethod method("/grpc.health.v1.Health/Watch",
                                           grpc::internal::RpcMethod::SERVER_STREAMING, channel_);
    HealthCheckRequest request;
    request.set_service(service);
    auto watch = std::make_unique<OpenWatch>();
    watch->context.set_deadline(std::chrono::system_clock::now() + kHealthDeadline);
    watch->reader.reset(grpc::internal::ClientReaderFactory<HealthCheckResponse>::Create(
        channel_.get(), method, &watch->context, request));
    return watch;
  }
  std::vector<std::string> AuditLines() const {
    const auto text = ReadWholeFile(directory_.Path("audit.jsonl"), 1 << 20);
    EXPECT_EQ(text.status(), absl::OkStatus());
    return absl::StrSplit(text.value_or(""), '\n', absl::SkipEmpty());
  }

  const file_testing::TempDirectory directory_;
  TestCoordinator coordinator_;
  std::unique_ptr<AuditLog> audit_;
  std::unique_ptr<CoordinatorServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(HealthServiceTest, ChecksHaveTheRateOfTheirAddressAndTheirRefusalsAreAudited) {
  ServerOptions options;
  options.rate = {.per_second = 1, .burst = 2};
  Serve(options);
  EXPECT_EQ(CheckCode("nibble.v1.Nobody"), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(CheckCode(""), grpc::StatusCode::OK);
  EXPECT_EQ(CheckCode(""), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(AuditLines(), testing::ElementsAre(
                                testing::AllOf(testing::HasSubstr("/grpc.health.v1.Health/Check"),
                                               testing::HasSubstr("RESOURCE_EXHAUSTED"))));
  coordinator_.clock.Advance(1000);
  EXPECT_EQ(CheckCode(""), grpc::StatusCode::OK);
}

TEST_F(HealthServiceTest, AWatchFollowsTheStatus) {
  const auto watch = Watch(), unknown = Watch("nibble.v1.Nobody");
  EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(unknown->Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  server_->SetServing(false);
  EXPECT_EQ(watch->Next(), HealthCheckResponse::NOT_SERVING);
  server_->SetServing(true);
  EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVING);
}

TEST_F(HealthServiceTest, WatchesEndWithTheServerAndDoNotDelayIt) {
  const auto watch = Watch(), unknown = Watch("nibble.v1.Nobody");
  EXPECT_EQ(watch->Next(), HealthCheckResponse::SERVING);
  EXPECT_EQ(unknown->Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  server_->Shutdown(std::chrono::milliseconds(kHealthDeadline).count() * 10);
  EXPECT_EQ(watch->Next(), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(watch->Next(), HealthCheckResponse::UNKNOWN);
  EXPECT_EQ(unknown->Next(), HealthCheckResponse::UNKNOWN);
  for (const auto* one : {&watch, &unknown}) {
    const grpc::Status status = (*one)->reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(status.error_message(), "the server stops");
  }
}

TEST_F(HealthServiceTest, WatchesOfAnAddressAreBoundedAndTheirRefusalsAudited) {
  ServerOptions options;
  options.health = {.all = 10, .of_address = 2};
  Serve(options);
  std::vector<std::unique_ptr<OpenWatch>> watches;
  for (int i = 0; i < 2; ++i) {
    watches.push_back(Watch());
    EXPECT_EQ(watches.back()->Next(), HealthCheckResponse::SERVING);
  }
  const grpc::Status refused = Watch()->reader->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), testing::HasSubstr("2 are open; allowed: 2"));
  EXPECT_THAT(AuditLines(), testing::ElementsAre(testing::HasSubstr("allowed: 2")));
  // One that ends makes room, once the server has learnt of it.
  watches.erase(watches.begin());
  const auto end = std::chrono::steady_clock::now() + kHealthDeadline;
  HealthCheckResponse::ServingStatus status = HealthCheckResponse::UNKNOWN;
  while (status == HealthCheckResponse::UNKNOWN && std::chrono::steady_clock::now() < end) {
    watches.push_back(Watch());
    status = watches.back()->Next();
  }
  EXPECT_EQ(status, HealthCheckResponse::SERVING);
}

TEST(HealthTest, AllAddressesTogetherHaveABoundToo) {
  Health health({""}, {.all = 3, .of_address = 2});
  const auto a = health.Open("a"), b = health.Open("a"), c = health.Open("b");
  EXPECT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_EQ(health.Open("c").status().message(), "health watches: 3 are open; allowed: 3");
  health.Close(*c);
  EXPECT_EQ(health.Open("a").status().message(), "health watches of a: 2 are open; allowed: 2");
  EXPECT_TRUE(health.Open("c").ok());
  health.Close(*c);  // without effect
  EXPECT_FALSE(health.Open("c").ok());
}

TEST(HealthTest, AServerThatStopsDoesNotServeAgain) {
  Health health({""}, {});
  int changes = 0;
  const auto watch = health.Open("a");
  health.Follow(*watch, [&changes] { ++changes; });
  health.SetServing(true);
  EXPECT_TRUE(health.Now().serving);
  health.Stop();
  health.SetServing(true);
  EXPECT_FALSE(health.Now().serving);
  EXPECT_TRUE(health.Now().stopping);
  EXPECT_EQ(changes, 3);
  health.Close(*watch);
  health.SetServing(false);
  EXPECT_EQ(changes, 3);
}

}  // namespace
}  // namespace nibble
