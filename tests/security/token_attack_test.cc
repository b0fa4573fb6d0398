// Callers without the right token, of the wrong role, or of another owner.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/nibble/v1/access.grpc.pb.h"
#include "proto/nibble/v1/coordinator.grpc.pb.h"
#include "server/access/access_table.h"
#include "server/controller/testing.h"
#include "tests/processes/processes.h"
#include "tests/security/secure_coordinator.h"

namespace nibble {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;
using testing::Not;

constexpr char kListJobsCall[] = "/nibble.v1.Coordinator/ListJobs";
constexpr char kCancelJobCall[] = "/nibble.v1.Coordinator/CancelJob";

class TokenAttackTest : public testing::Test {
 protected:
  grpc::Status List(const std::string& token) {
    v1::ListJobsResponse listed;
    return v1::Coordinator::NewStub(coordinator_.Connect())
        ->ListJobs(CallWith(token).get(), {}, &listed);
  }
  std::string Submit(const std::string& token, const std::string& id) {
    v1::SubmitJobRequest request;
    request.set_request_id(id);
    request.set_spec_yaml(TestCoordinator::Spec("train", 1));
    v1::SubmitJobResponse response;
    const grpc::Status status = v1::Coordinator::NewStub(coordinator_.Connect())
                                    ->SubmitJob(CallWith(token).get(), request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.job().id();
  }
  grpc::Status Cancel(const std::string& token, const std::string& job, const std::string& id) {
    v1::CancelJobRequest request;
    request.set_request_id(id);
    request.set_job(job);
    request.set_reason("test");
    v1::CancelJobResponse response;
    return v1::Coordinator::NewStub(coordinator_.Connect())
        ->CancelJob(CallWith(token).get(), request, &response);
  }
  static std::string Claims(const std::string& role, int64_t expires_in_s = 600,
                            const std::string& issuer = "https://id.lab") {
    return absl::StrCat(R"({"iss":")", issuer, R"(","sub":"zoe","exp":)",
                        absl::ToUnixSeconds(absl::Now()) + expires_in_s, R"(,"nibble_role":")",
                        role, R"("})");
  }

  SecureCoordinator coordinator_;
};

TEST_F(TokenAttackTest, NobodyCallsWithoutAToken) {
  const grpc::Status status = List("");
  EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), HasSubstr("--token-file"));
  EXPECT_TRUE(coordinator_.Audited({"call", kListJobsCall, "outcome", "refused", "code",
                                    "UNAUTHENTICATED", "peer", "nibble://client/cli"}));
  EXPECT_TRUE(List(coordinator_.Bootstrap()).ok());
  // What a caller names itself in the metadata is not believed.
  auto context = CallWith("");
  context->AddMetadata("nibble-author", "bootstrap");
  v1::ListJobsResponse listed;
  EXPECT_EQ(v1::Coordinator::NewStub(coordinator_.Connect())
                ->ListJobs(context.get(), {}, &listed)
                .error_code(),
            StatusCode::UNAUTHENTICATED);
}

// Every call of the table with every role that the table does not allow.
TEST_F(TokenAttackTest, NoRoleMakesACallAboveIt) {
  const v1::Role roles[] = {v1::ROLE_VIEWER, v1::ROLE_SUBMITTER, v1::ROLE_OPERATOR,
                            v1::ROLE_WORKER};
  const TlsFiles worker = coordinator_.authority().Issue("w1", {PeerKind::kWorker, "w1"});
  for (const v1::Role role : roles) {
    const std::string name = absl::StrCat(role == v1::ROLE_WORKER ? "w1" : "ann-", RoleText(role));
    const std::string holder = role == v1::ROLE_WORKER ? "w1" : name;
    const std::string token = coordinator_.MakeToken(holder, role);
    const auto channel =
        role == v1::ROLE_WORKER ? coordinator_.Connect(worker) : coordinator_.Connect();
    int refused = 0;
    for (const AccessRow& row : AccessTable()) {
      if (CheckRole(row, role, holder).ok()) continue;
      ++refused;
      const auto context = CallWith(token);
      grpc::GenericStub stub(channel);
      grpc::CompletionQueue queue;
      const auto call = stub.PrepareCall(context.get(), row.call, &queue);
      const auto next = [&queue] {
        void* tag = nullptr;
        bool ok = false;
        return queue.Next(&tag, &ok);
      };
      call->StartCall(nullptr);
      ASSERT_TRUE(next());
      // An empty message, which reflection reads before it admits.
      const grpc::Slice nothing;
      call->WriteLast(grpc::ByteBuffer(&nothing, 1), {}, nullptr);
      ASSERT_TRUE(next());
      grpc::Status status;
      call->Finish(&status, nullptr);
      ASSERT_TRUE(next());
      EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED)
          << RoleText(role) << " " << row.call << ": " << status.error_message();
      EXPECT_TRUE(coordinator_.Audited(
          {"call", row.call, "who", holder, "outcome", "refused", "code", "PERMISSION_DENIED"}))
          << row.call;
    }
    EXPECT_GE(refused, 1) << RoleText(role);
  }
}

TEST_F(TokenAttackTest, ASubmitterChangesOnlyItsOwnJobs) {
  const std::string ann = coordinator_.MakeToken("ann", v1::ROLE_SUBMITTER);
  const std::string bob = coordinator_.MakeToken("bob", v1::ROLE_SUBMITTER);
  const std::string mine = Submit(ann, "request-1");
  const std::string his = Submit(bob, "request-2");
  const grpc::Status refused = Cancel(ann, his, "request-3");
  EXPECT_EQ(refused.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.error_message(), HasSubstr("belongs to bob"));
  EXPECT_TRUE(coordinator_.Audited({"call", kCancelJobCall, "who", "ann", "role", "submitter",
                                    "subject", "job " + his, "outcome", "refused"}));
  // A job that may be about to exist is nobody's yet.
  EXPECT_EQ(Cancel(ann, "train-9", "request-4").error_code(), StatusCode::NOT_FOUND);
  // The checkpoint of another's job.
  v1::DeleteCheckpointRequest remove;
  remove.set_request_id("request-5");
  remove.mutable_ref()->set_job(his);
  v1::DeleteCheckpointResponse removed;
  EXPECT_EQ(v1::Coordinator::NewStub(coordinator_.Connect())
                ->DeleteCheckpoint(CallWith(ann).get(), remove, &removed)
                .error_code(),
            StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Cancel(ann, mine, "request-6").ok());
  EXPECT_TRUE(coordinator_.Audited({"call", kCancelJobCall, "who", "ann", "subject", "job " + mine,
                                    "request", "request-6", "outcome", "done"}));
  // An operator changes all.
  EXPECT_TRUE(Cancel(coordinator_.Bootstrap(), his, "request-7").ok());
}

TEST_F(TokenAttackTest, RevokedExpiredAndGuessedTokensAreRefused) {
  const std::string revoked = coordinator_.MakeToken("ann", v1::ROLE_VIEWER);
  EXPECT_TRUE(List(revoked).ok());
  coordinator_.RevokeToken(revoked);
  EXPECT_THAT(List(revoked).error_message(), HasSubstr("revoked"));
  const std::string expired = coordinator_.MakeToken("ann", v1::ROLE_VIEWER, 1);
  grpc::Status status;
  EXPECT_TRUE(Eventually([&] { return !(status = List(expired)).ok(); }));
  EXPECT_THAT(status.error_message(), HasSubstr("expired"));
  std::string guessed = coordinator_.MakeToken("ann", v1::ROLE_OPERATOR);
  guessed.back() = guessed.back() == 'A' ? 'B' : 'A';
  for (const std::string& token :
       {guessed, std::string("nibble_"), std::string("x"), guessed + guessed}) {
    EXPECT_EQ(List(token).error_code(), StatusCode::UNAUTHENTICATED) << token;
  }
  EXPECT_TRUE(coordinator_.Audited(
      {"call", kListJobsCall, "outcome", "refused", "code", "UNAUTHENTICATED"}));
}

TEST_F(TokenAttackTest, AJwtIsOnlyAsGoodAsItsSignature) {
  EXPECT_TRUE(List(coordinator_.MakeJwt(Claims("viewer"))).ok());
  const struct {
    std::string token, problem;
  } attacks[] = {
      {coordinator_.MakeJwt(Claims("operator"), "none"), "allowed: RS256"},
      {coordinator_.MakeJwt(Claims("operator"), "HS256"), "allowed: RS256"},
      {coordinator_.MakeJwt(Claims("operator"), "ES256", /*forged=*/true), "signature is wrong"},
      {coordinator_.MakeJwt(Claims("operator", -3600)), "expired"},
      {coordinator_.MakeJwt(Claims("operator", 600, "https://id.evil")), "iss"},
      {coordinator_.MakeJwt(Claims("emperor")), "has no role"},
  };
  for (const auto& attack : attacks) {
    const grpc::Status status = List(attack.token);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << attack.problem;
    EXPECT_THAT(status.error_message(), HasSubstr(attack.problem));
    bool audited = false;
    for (const auto& entry : coordinator_.Audit()) {
      audited = audited || absl::StrContains(entry.value("reason", ""), attack.problem);
    }
    EXPECT_TRUE(audited) << attack.problem;
  }
  // A viewer by JWT is no more than a viewer.
  EXPECT_EQ(Cancel(coordinator_.MakeJwt(Claims("viewer")), "train-1", "request-1").error_code(),
            StatusCode::PERMISSION_DENIED);
}

TEST_F(TokenAttackTest, SecretsAreNowhereOnTheDiskAndInNoLog) {
  const std::string token = coordinator_.MakeToken("ann", v1::ROLE_SUBMITTER);
  const std::string jwt = coordinator_.MakeJwt(Claims("viewer"), "ES256", /*forged=*/true);
  Submit(token, "request-1");
  (void)List(jwt);
  (void)List(token + "x");
  const std::string secret = token.substr(sizeof("nibble_") - 1);
  const std::string signature = jwt.substr(jwt.rfind('.') + 1);
  const std::string bootstrap = coordinator_.Bootstrap().substr(sizeof("nibble_") - 1);
  for (const std::string& text :
       {TextOf(coordinator_.Path("audit.jsonl")), TextOf(coordinator_.Path("store/TOKENS")),
        coordinator_.process().OutputText()}) {
    EXPECT_FALSE(text.empty());
    EXPECT_THAT(text, Not(HasSubstr(secret)));
    EXPECT_THAT(text, Not(HasSubstr(signature)));
    EXPECT_THAT(text, Not(HasSubstr(bootstrap)));
  }
}

TEST_F(TokenAttackTest, OversizedFramesAreRefusedAndTheCoordinatorServesOn) {
  const std::string token = coordinator_.MakeToken("ann", v1::ROLE_SUBMITTER);
  const auto stub = v1::Coordinator::NewStub(coordinator_.Connect());
  v1::SubmitJobRequest request;
  request.set_request_id("request-1");
  v1::SubmitJobResponse response;
  request.set_spec_yaml(std::string(9 << 20, 'x'));
  EXPECT_EQ(stub->SubmitJob(CallWith(token).get(), request, &response).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  request.set_spec_yaml(std::string(2 << 20, 'x'));
  EXPECT_EQ(stub->SubmitJob(CallWith(token).get(), request, &response).error_code(),
            StatusCode::INVALID_ARGUMENT);
  auto context = CallWith(std::string(20'000, 'a'));
  v1::ListJobsResponse listed;
  EXPECT_FALSE(stub->ListJobs(context.get(), {}, &listed).ok());
  EXPECT_TRUE(coordinator_.process().Lives());
  EXPECT_TRUE(List(token).ok());
}

TEST_F(TokenAttackTest, TheStreamsOfOneCallerAreBounded) {
  SecureCoordinator bounded(3600, {"--max-streams-per-caller=2"});
  const std::string token = bounded.MakeToken("ann", v1::ROLE_VIEWER);
  const auto stub = v1::Coordinator::NewStub(bounded.Connect());
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>>> streams;
  v1::WatchJobsResponse response;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(CallWith(token));
    streams.push_back(stub->WatchJobs(contexts.back().get(), {}));
    ASSERT_TRUE(streams.back()->Read(&response)) << i;
  }
  const auto open = [&](const std::string& of) {
    const auto context = CallWith(of);
    const auto stream = stub->WatchJobs(context.get(), {});
    if (!stream->Read(&response)) return stream->Finish().error_code();
    context->TryCancel();
    (void)stream->Finish();
    return StatusCode::OK;
  };
  EXPECT_EQ(open(token), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(bounded.Audited({"who", "ann", "outcome", "refused", "code", "RESOURCE_EXHAUSTED"}));
  // Others are not affected, and a stream that ends makes room.
  EXPECT_EQ(open(bounded.Bootstrap()), StatusCode::OK);
  contexts[0]->TryCancel();
  (void)streams[0]->Finish();
  EXPECT_TRUE(Eventually([&] { return open(token) == StatusCode::OK; }));
  contexts[1]->TryCancel();
  (void)streams[1]->Finish();
}

}  // namespace
}  // namespace nibble
