#include "server/access/authenticator.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/access/access_table.h"
#include "server/access/audit_log.h"

namespace nibble {
namespace {

using testing::HasSubstr;

const PeerName kNobodyPeer = {};
const PeerName kWorkerPeer = {PeerKind::kWorker, "w1"};
const PeerName kClientPeer = {PeerKind::kClient, "cli"};

class AuthenticatorTest : public testing::Test {
 protected:
  AuthenticatorTest() {
    auto opened = Authenticator::Open(
        {.token_file = directory_.Path("tokens"), .bootstrap_file = directory_.Path("bootstrap")});
    EXPECT_EQ(opened.status(), absl::OkStatus());
    if (opened.ok()) authenticator_ = *std::move(opened);
  }
  std::string BootstrapToken() const {
    const auto text = ReadWholeFile(directory_.Path("bootstrap"), 1000);
    EXPECT_EQ(text.status(), absl::OkStatus());
    return std::string(absl::StripSuffix(*text, "\n"));
  }
  std::string NewToken(const std::string& name, v1::Role role) {
    const std::string text = *NewTokenText();
    v1::CreateTokenRequest request;
    request.set_name(name);
    request.set_role(role);
    request.set_valid_ms(1000);
    request.set_secret_sha256(Sha256(text));
    EXPECT_EQ(authenticator_->tokens().Create(request, "root", 0).status(), absl::OkStatus());
    return text;
  }
  absl::StatusOr<AccessCaller> As(const PeerName& peer, const std::string& token) {
    return authenticator_->Authenticate(peer, token.empty() ? "" : "Bearer " + token, 500);
  }

  const file_testing::TempDirectory directory_;
  std::unique_ptr<Authenticator> authenticator_;
};

TEST_F(AuthenticatorTest, TheBootstrapTokenIsMadeForItsOwnerAlone) {
  struct stat entry = {};
  ASSERT_EQ(stat(directory_.Path("bootstrap").c_str(), &entry), 0);
  EXPECT_EQ(entry.st_mode & 0777, 0600u);
  const auto caller = As(kNobodyPeer, BootstrapToken());
  ASSERT_EQ(caller.status(), absl::OkStatus());
  EXPECT_EQ(caller->role, v1::ROLE_OPERATOR);
  EXPECT_EQ(caller->name, "bootstrap");
  // It is read again, not made again.
  const std::string before = BootstrapToken();
  EXPECT_TRUE(Authenticator::Open({.token_file = directory_.Path("tokens"),
                                   .bootstrap_file = directory_.Path("bootstrap")})
                  .ok());
  EXPECT_EQ(BootstrapToken(), before);
}

TEST_F(AuthenticatorTest, ABootstrapFileThatOthersMayReadOrThatIsShortIsRefused) {
  const std::string path = directory_.Path("given");
  std::ofstream(path) << std::string(64, 'a');
  chmod(path.c_str(), 0640);
  const Authenticator::Options options = {.token_file = directory_.Path("t"),
                                          .bootstrap_file = path};
  EXPECT_THAT(Authenticator::Open(options).status().message(), HasSubstr("chmod 600"));
  chmod(path.c_str(), 0600);
  EXPECT_EQ(Authenticator::Open(options).status(), absl::OkStatus());
  std::ofstream(path) << "password";
  EXPECT_THAT(Authenticator::Open(options).status().message(), HasSubstr("8 bytes"));
}

TEST_F(AuthenticatorTest, ACallerIsWhoItsTokenSays) {
  const auto caller = As(kClientPeer, NewToken("ann", v1::ROLE_VIEWER));
  ASSERT_EQ(caller.status(), absl::OkStatus());
  EXPECT_EQ(caller->name, "ann");
  EXPECT_EQ(caller->role, v1::ROLE_VIEWER);
  EXPECT_THAT(caller->proof, HasSubstr("token "));
  for (const char* wrong : {"nibble_", "nibble_x", "x", "a.b.c"}) {
    EXPECT_TRUE(absl::IsUnauthenticated(As(kClientPeer, wrong).status())) << wrong;
  }
  EXPECT_TRUE(
      absl::IsUnauthenticated(authenticator_->Authenticate(kClientPeer, "Basic eDp5", 0).status()));
}

TEST_F(AuthenticatorTest, ATokenThatAnEarlierVersionMadeForAReservedNameIsRefused) {
  const std::string token = NewToken("ann", v1::ROLE_OPERATOR);
  std::string file = file_testing::ContentOf(directory_.Path("tokens"));
  const size_t at = file.find(R"("ann")");
  ASSERT_NE(at, std::string::npos);
  std::ofstream(directory_.Path("tokens")) << file.replace(at, 5, R"("guard")");
  authenticator_ = *Authenticator::Open({.token_file = directory_.Path("tokens")});
  const absl::Status refused = As(kClientPeer, token).status();
  EXPECT_TRUE(absl::IsUnauthenticated(refused));
  EXPECT_THAT(refused.message(), HasSubstr("'guard' is reserved"));
}

TEST_F(AuthenticatorTest, WithoutATokenOnlyAWorkersCertificateIsEnough) {
  const auto worker = As(kWorkerPeer, "");
  ASSERT_EQ(worker.status(), absl::OkStatus());
  EXPECT_EQ(worker->name, "w1");
  EXPECT_EQ(worker->role, v1::ROLE_WORKER);
  for (const PeerName& peer : {kNobodyPeer, kClientPeer, PeerName{PeerKind::kCoordinator, ""}}) {
    EXPECT_TRUE(absl::IsUnauthenticated(As(peer, "").status())) << peer.ToString();
  }
}

TEST_F(AuthenticatorTest, AWorkersTokenIsNotUsedWithAnothersCertificate) {
  const std::string token = NewToken("w1", v1::ROLE_WORKER);
  EXPECT_TRUE(As(kWorkerPeer, token).ok());
  EXPECT_TRUE(As(kNobodyPeer, token).ok());  // without TLS
  EXPECT_TRUE(absl::IsPermissionDenied(As({PeerKind::kWorker, "w2"}, token).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(As(kClientPeer, token).status()));
}

TEST_F(AuthenticatorTest, AnOpenStreamIsNoLongerValidOnceItsTokenIsRevoked) {
  const auto caller = As(kNobodyPeer, NewToken("w1", v1::ROLE_WORKER));
  ASSERT_EQ(caller.status(), absl::OkStatus());
  EXPECT_TRUE(authenticator_->CheckStillValid(*caller, 500).ok());
  EXPECT_FALSE(authenticator_->CheckStillValid(*caller, 1000).ok());
  ASSERT_TRUE(authenticator_->tokens().Revoke(caller->token_id, "root", 600).ok());
  EXPECT_FALSE(authenticator_->CheckStillValid(*caller, 700).ok());
}

TEST_F(AuthenticatorTest, AJwksFileThatCannotBeUsedIsNamed) {
  const Authenticator::Options options = {.token_file = directory_.Path("t"),
                                          .jwks_file = directory_.Path("jwks")};
  EXPECT_THAT(Authenticator::Open(options).status().message(), HasSubstr("--jwks-file"));
  std::ofstream(directory_.Path("jwks")) << R"({"keys":[]})";
  EXPECT_THAT(Authenticator::Open(options).status().message(), HasSubstr("none of its 0 keys"));
  std::ofstream(directory_.Path("jwks"))
      << R"({"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",)"
      << R"("y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]})";
  EXPECT_EQ(Authenticator::Open(options).status(), absl::OkStatus());
}

TEST(Audit, ALineIsOneJsonObject) {
  AuditEntry entry = {.time_unix_ms = 1'777'629'600'123,
                      .who = "ann",
                      .role = "submitter",
                      .proof = "token 0123456789ab",
                      .from = "ipv4:10.0.0.7:4",
                      .call = "/nibble.v1.Coordinator/CancelJob",
                      .subject = "job train-7",
                      .request = "req-0001"};
  EXPECT_EQ(AuditLine(entry),
            R"({"time":"2026-05-01T10:00:00.123Z","who":"ann","role":"submitter",)"
            R"("proof":"token 0123456789ab","from":"ipv4:10.0.0.7:4",)"
            R"("call":"/nibble.v1.Coordinator/CancelJob","subject":"job train-7",)"
            R"("request":"req-0001","outcome":"done","code":"OK"})");
  entry.status = absl::NotFoundError("a\nb\xff");
  EXPECT_THAT(AuditLine(entry),
              HasSubstr(R"("outcome":"failed","code":"NOT_FOUND","reason":"a\nb)"));
  entry.refused = true;
  EXPECT_THAT(AuditLine(entry), HasSubstr(R"("outcome":"refused")"));
}

TEST(Audit, AFullFileIsRotatedAndTheOldestForgotten) {
  const file_testing::TempDirectory directory;
  const std::string path = directory.Path("audit.jsonl");
  auto log = AuditLog::Open({.path = path, .file_bytes = 250, .files = 2});
  ASSERT_EQ(log.status(), absl::OkStatus());
  for (int i = 0; i < 20; ++i) {
    (*log)->Write({.who = absl::StrCat("caller-", i), .status = absl::OkStatus()});
  }
  std::string all;
  for (const char* suffix : {".2", ".1", ""}) {
    const auto text = ReadWholeFile(path + suffix, 1000);
    ASSERT_EQ(text.status(), absl::OkStatus()) << suffix;
    EXPECT_LE(text->size(), 250u);
    all += *text;
  }
  EXPECT_TRUE(absl::IsNotFound(ReadWholeFile(path + ".3", 1000).status()));
  EXPECT_THAT(all, HasSubstr("caller-19"));
  EXPECT_EQ(all.find("caller-0\""), std::string::npos);
  // A restart appends.
  log = AuditLog::Open({.path = path, .file_bytes = 1 << 20});
  (*log)->Write({.who = "later"});
  EXPECT_THAT(*ReadWholeFile(path, 1000), HasSubstr("caller-19"));
}

TEST(Audit, ALineAfterATornOneIsWhole) {
  const file_testing::TempDirectory directory;
  const std::string path = directory.Path("audit.jsonl");
  std::ofstream(path) << R"({"who":"killed wh)";
  int failed = 0;
  const auto log = AuditLog::Open({.path = path, .failed = [&failed](const auto&) { ++failed; }});
  ASSERT_EQ(log.status(), absl::OkStatus());
  (*log)->Write({.who = "after a kill"});
  // The disk is full ten bytes further.
  const auto size = ReadWholeFile(path, 10'000)->size();
  (void)std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit full = {.rlim_cur = size + 10, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  (*log)->Write({.who = "lost"});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(failed, 1);
  (*log)->Write({.who = "after a full disk"});
  const std::string text = *ReadWholeFile(path, 10'000);
  EXPECT_THAT(text, HasSubstr("\n" + AuditLine({.who = "after a kill"}) + "\n"));
  EXPECT_THAT(text, HasSubstr("\n" + AuditLine({.who = "after a full disk"}) + "\n"));
}

}  // namespace
}  // namespace nibble
