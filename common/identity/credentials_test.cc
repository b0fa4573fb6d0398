#include "common/identity/credentials.h"

#include <sys/stat.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/files/files_testing.h"
#include "common/identity/certificates.h"
#include "common/identity/testing.h"
#include "common/mutex.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

constexpr char kCheck[] = "/grpc.health.v1.Health/Check";
const PeerName kCoordinatorName = {PeerKind::kCoordinator, ""};
const PeerName kWorkerName = {PeerKind::kWorker, "w1"};
const PeerName kClientName = {PeerKind::kClient, "ann"};

class CredentialsTest : public testing::Test {
 protected:
  static std::shared_ptr<const Credentials> Load(const TlsFiles& files) {
    auto made = Credentials::Make(files);
    EXPECT_EQ(made.status(), absl::OkStatus());
    return made.ok() ? *std::move(made) : Credentials::Insecure();
  }

  // gRPC's health service alone; a server without another one does not start.
  void Serve(const TlsFiles& files, MayCall may_call = nullptr) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    credentials_ = Load(files);
    builder.AddListeningPort("127.0.0.1:0", credentials_->ForServer(std::move(may_call)), &port_);
    builder.RegisterCallbackGenericService(&unimplemented_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
  }

  grpc::Status Call(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                    std::chrono::milliseconds patience = std::chrono::seconds(20)) const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel =
        grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", port_), credentials, arguments);
    grpc::GenericStub stub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + patience);
    const grpc::Slice nothing;
    const grpc::ByteBuffer request(&nothing, 1);
    grpc::ByteBuffer response;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, kCheck, {}, &request, &response, [&](const grpc::Status& ended) {
      status = ended;
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }
  grpc::Status CallAs(const TlsFiles& files, PeerKind wanted = PeerKind::kCoordinator) const {
    return Call(Load(files)->ForChannelTo(wanted));
  }

  const file_testing::TempDirectory directory_;
  const TestAuthority authority_{directory_.path(), "lab"};
  std::shared_ptr<const Credentials> credentials_;
  int port_ = 0;
  grpc::CallbackGenericService unimplemented_;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(CredentialsTest, BothSidesOfACallKnowEachOther) {
  Mutex mutex;
  std::vector<std::string> seen;
  Serve(authority_.Issue("coordinator", kCoordinatorName),
        [&](const PeerName& peer, absl::string_view call) {
          MutexLock lock(&mutex);
          seen.push_back(absl::StrCat(peer.ToString(), " ", call));
          return absl::OkStatus();
        });
  EXPECT_TRUE(credentials_->secure());
  EXPECT_EQ(credentials_->own_name(), kCoordinatorName);
  const grpc::Status status = CallAs(authority_.Issue("ann", kClientName));
  EXPECT_TRUE(status.ok()) << status.error_message();
  MutexLock lock(&mutex);
  EXPECT_THAT(seen, testing::ElementsAre(absl::StrCat("nibble://client/ann ", kCheck)));
}

TEST_F(CredentialsTest, ACallThatMayNotBeMadeReachesNoHandler) {
  Serve(authority_.Issue("coordinator", kCoordinatorName), [](const PeerName&, absl::string_view) {
    return absl::PermissionDeniedError("not for you");
  });
  const grpc::Status status = CallAs(authority_.Issue("ann", kClientName));
  EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(status.error_message(), "not for you");
}

TEST_F(CredentialsTest, CertificatesOfAnotherAuthorityAreRefusedByBothSides) {
  Serve(authority_.Issue("coordinator", kCoordinatorName));
  const TestAuthority other(directory_.path(), "other");
  TlsFiles foreign = other.Issue("eve", kClientName);
  // The client does not trust the server.
  EXPECT_EQ(CallAs(foreign).error_code(), StatusCode::UNAVAILABLE);
  // The server does not trust the client.
  foreign.authority = authority_.Issue("ann", kClientName).authority;
  EXPECT_EQ(CallAs(foreign).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(CredentialsTest, ACallerWithoutACertificateIsRefused) {
  const TlsFiles files = authority_.Issue("coordinator", kCoordinatorName);
  Serve(files);
  EXPECT_EQ(Call(grpc::InsecureChannelCredentials()).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(grpc::SslCredentials({})).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(CredentialsTest, AWorkerCannotPoseAsTheCoordinator) {
  Serve(authority_.Issue("w1", kWorkerName));
  const TlsFiles client = authority_.Issue("ann", kClientName);
  const grpc::Status status = CallAs(client, PeerKind::kCoordinator);
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_TRUE(CallAs(client, PeerKind::kWorker).ok());
}

TEST_F(CredentialsTest, AnExpiredCertificateIsReplacedWithoutARestart) {
  const TlsFiles client = authority_.Issue("ann", kClientName);
  Serve(authority_.Issue("coordinator", kCoordinatorName, /*valid_s=*/-60));
  EXPECT_EQ(CallAs(client).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(credentials_->OwnExpiry(absl::ToUnixSeconds(absl::Now())),
              testing::ContainsRegex("coordinator.*expired at 2[0-9-]+T[0-9:]+Z; renew it"));
  authority_.Issue("coordinator", kCoordinatorName);
  EXPECT_EQ(credentials_->OwnExpiry(absl::ToUnixSeconds(absl::Now())), "");
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  grpc::Status status;
  do {
    status = CallAs(client);
  } while (!status.ok() && std::chrono::steady_clock::now() < deadline);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(CredentialsTest, FilesThatDoNotFitAreNamed) {
  const TlsFiles files = authority_.Issue("coordinator", kCoordinatorName);
  const TlsFiles other = authority_.Issue("w1", kWorkerName);
  const auto message = [](TlsFiles given) {
    return std::string(Credentials::Make(given).status().message());
  };
  EXPECT_THAT(message({.certificate = files.certificate, .authority = files.authority}),
              HasSubstr("--tls-key: not given"));
  EXPECT_THAT(message({files.certificate, other.key, files.authority}),
              HasSubstr("the key is not that of the certificate"));
  EXPECT_THAT(message({files.certificate, files.key, files.key}), HasSubstr("--tls-ca"));
  EXPECT_THAT(message({directory_.Path("absent"), files.key, files.authority}),
              HasSubstr("--tls-cert"));
  // The authority's own certificate has no name of ours.
  EXPECT_EQ(chmod(files.key.c_str(), 0644), 0);
  EXPECT_THAT(message(files), HasSubstr("chmod 600"));
}

TEST_F(CredentialsTest, WithoutFilesNothingIsEncryptedAndNobodyNamed) {
  Serve({});
  EXPECT_FALSE(credentials_->secure());
  EXPECT_TRUE(Call(grpc::InsecureChannelCredentials()).ok());
}

TEST(Certificates, TheNamesOfAPeerAreInItsCertificate) {
  const auto authority = MakeAuthority("lab", {.from = 1'000'000'000, .until = 2'000'000'000});
  ASSERT_EQ(authority.status(), absl::OkStatus());
  const auto made = IssueCertificate(*authority, kWorkerName, {"w1.lab", "10.0.0.7"},
                                     {.from = 1'000'000'000, .until = 1'900'000'000});
  ASSERT_EQ(made.status(), absl::OkStatus());
  const auto facts = ReadCertificate(made->certificate);
  ASSERT_EQ(facts.status(), absl::OkStatus());
  EXPECT_THAT(facts->uris, testing::ElementsAre("nibble://worker/w1"));
  EXPECT_EQ(facts->expires_unix_s, 1'900'000'000);
  EXPECT_EQ(CheckKeyFits(made->certificate, made->key), absl::OkStatus());
  EXPECT_FALSE(CheckKeyFits(made->certificate, authority->key).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      IssueCertificate(*authority, kWorkerName, {"a,URI:nibble://coordinator"}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      IssueCertificate(*authority, {PeerKind::kWorker, "a,b"}, {}, {}).status()));
}

}  // namespace
}  // namespace nibble
