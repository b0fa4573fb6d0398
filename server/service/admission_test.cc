#include "server/service/admission.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/audit_log.h"

namespace nibble {
namespace {

// Admission with tokens, whose open calls end when their callers' tokens do.
class OpenCallTest : public testing::Test {
 protected:
  OpenCallTest() {
    auto opened = Authenticator::Open({.token_file = directory_.Path("tokens")});
    EXPECT_EQ(opened.status(), absl::OkStatus());
    authenticator_ = *std::move(opened);
    admission_ = std::make_unique<Admission>(
        clock_, Admission::Options{.streams_per_caller = 3, .authenticator = authenticator_.get()});
  }
  // A caller with a new token, valid for this long; 0: forever.
  CallerIdentity CallerWithToken(const std::string& name, int64_t valid_ms = 0) {
    v1::CreateTokenRequest request;
    request.set_name(name);
    request.set_role(v1::ROLE_VIEWER);
    request.set_valid_ms(valid_ms);
    request.set_secret_sha256(Sha256(*NewTokenText()));
    const auto made = authenticator_->tokens().Create(request, "root", clock_.NowUnixMs());
    EXPECT_EQ(made.status(), absl::OkStatus());
    CallerIdentity caller;
    caller.author = name;
    caller.access = {.name = name, .role = v1::ROLE_VIEWER, .token_id = made->id()};
    caller.authenticated = true;
    return caller;
  }
  std::shared_ptr<OpenCall> Open(const CallerIdentity& caller, std::vector<absl::Status>& ends) {
    auto open = admission_->Open(caller, "/watch", "job a");
    EXPECT_EQ(open.status(), absl::OkStatus());
    if (!open.ok()) return nullptr;
    (*open)->EndWith([&ends](const absl::Status& why) { ends.push_back(why); });
    return *std::move(open);
  }

  const file_testing::TempDirectory directory_;
  ManualClock clock_{1000};
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<Admission> admission_;
};

TEST_F(OpenCallTest, ARevokedTokenEndsItsCallsOnceAndNoOthers) {
  const CallerIdentity ann = CallerWithToken("ann"), bob = CallerWithToken("bob");
  std::vector<absl::Status> of_ann, of_bob;
  const auto one = Open(ann, of_ann), two = Open(ann, of_ann), other = Open(bob, of_bob);
  admission_->EndInvalid();
  EXPECT_THAT(of_ann, testing::IsEmpty());
  ASSERT_TRUE(
      authenticator_->tokens().Revoke(ann.access.token_id, "root", clock_.NowUnixMs()).ok());
  admission_->EndInvalid();
  admission_->EndInvalid();
  ASSERT_EQ(of_ann.size(), 2u);
  EXPECT_TRUE(absl::IsUnauthenticated(of_ann[0]));
  EXPECT_THAT(std::string(of_ann[0].message()), testing::HasSubstr("revoked"));
  EXPECT_THAT(of_bob, testing::IsEmpty());
}

TEST_F(OpenCallTest, AnExpiredTokenEndsItsCallsAndSoDoesAJwt) {
  const CallerIdentity ann = CallerWithToken("ann", 500);
  CallerIdentity zoe;
  zoe.author = "zoe";
  zoe.access = {.name = "zoe", .role = v1::ROLE_VIEWER, .proof = "jwt"};
  zoe.access.expires_unix_ms = clock_.NowUnixMs() + 800;
  zoe.authenticated = true;
  std::vector<absl::Status> of_ann, of_zoe;
  const auto one = Open(ann, of_ann), two = Open(zoe, of_zoe);
  clock_.Advance(499);
  admission_->EndInvalid();
  EXPECT_THAT(of_ann, testing::IsEmpty());
  clock_.Advance(1);
  admission_->EndInvalid();
  EXPECT_EQ(of_ann.size(), 1u);
  EXPECT_THAT(of_zoe, testing::IsEmpty());
  clock_.Advance(300);
  admission_->EndInvalid();
  EXPECT_EQ(of_zoe.size(), 1u);
}

TEST_F(OpenCallTest, ACallThatEndsBeforeItSaysHowIsEndedThen) {
  OpenCall call(nullptr);
  EXPECT_TRUE(call.End(absl::UnauthenticatedError("revoked")));
  EXPECT_FALSE(call.End(absl::UnauthenticatedError("again")));
  std::vector<absl::Status> ends;
  call.EndWith([&ends](const absl::Status& why) { ends.push_back(why); });
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].message(), "revoked");
}

TEST_F(OpenCallTest, OpenCallsAreBoundedPerCallerAndPerCall) {
  const CallerIdentity ann = CallerWithToken("ann"), bob = CallerWithToken("bob");
  std::vector<std::shared_ptr<OpenCall>> open;
  const auto take = [&](const CallerIdentity& caller, const char* call, int most) {
    auto made = admission_->Open(caller, call, "", most);
    if (made.ok()) open.push_back(*made);
    return made.status().code();
  };
  EXPECT_EQ(take(ann, "/logs", 1), absl::StatusCode::kOk);
  EXPECT_EQ(take(ann, "/logs", 1), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(take(ann, "/watch", 0), absl::StatusCode::kOk);
  EXPECT_EQ(take(ann, "/watch", 0), absl::StatusCode::kOk);
  EXPECT_EQ(take(ann, "/watch", 0), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(take(bob, "/logs", 1), absl::StatusCode::kOk);
  open.erase(open.begin());
  EXPECT_EQ(take(ann, "/logs", 1), absl::StatusCode::kOk);
}

TEST(AdmissionAuditTest, RefusalsWithoutLinesAreCountedByAddress) {
  const file_testing::TempDirectory directory;
  auto audit = AuditLog::Open({.path = directory.Path("audit.jsonl")});
  ASSERT_EQ(audit.status(), absl::OkStatus());
  ManualClock clock(1000);
  int64_t refused = 0;
  Admission admission(clock, {.audit = audit->get(), .count = [&](const char*) { ++refused; }});
  CallerIdentity caller;
  caller.author = "eve";
  caller.peer = "ipv4:10.0.0.7";
  caller.from = "ipv4:10.0.0.7:41234";
  constexpr int kRefusals = 5000;
  for (int i = 0; i < kRefusals; ++i) {
    admission.Record(caller, "/call", "", "", absl::ResourceExhaustedError("often"), true);
  }
  admission.RecordCounts();
  caller.peer = "ipv4:10.0.0.8";
  admission.Record(caller, "/call", "", "", absl::ResourceExhaustedError("once"), true);
  admission.RecordCounts(/*end=*/true);
  EXPECT_EQ(refused, kRefusals + 1);
  const auto text = ReadWholeFile(directory.Path("audit.jsonl"), size_t{16} << 20);
  ASSERT_EQ(text.status(), absl::OkStatus());
  const std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  // A burst of lines, the count of the others, and the line of another address.
  ASSERT_EQ(lines.size(), 2000u + 1 + 1);
  EXPECT_THAT(lines[2000], testing::AllOf(testing::HasSubstr(R"("from":"ipv4:10.0.0.7")"),
                                          testing::HasSubstr(R"("call":"refusals")"),
                                          testing::HasSubstr(R"("count":3000)"),
                                          testing::HasSubstr(R"("outcome":"refused")")));
  EXPECT_THAT(lines.back(), testing::HasSubstr("once"));
}

}  // namespace
}  // namespace nibble
