#include "server/access/token_registry.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kTokenNow = 1'000'000;

class TokensTest : public testing::Test {
 protected:
  TokensTest() { Reopen(); }

  void Reopen(size_t most = kMaxTokens) {
    auto opened = TokenRegistry::Open(path_, most);
    ASSERT_EQ(opened.status(), absl::OkStatus());
    registry_ = *std::move(opened);
  }
  static v1::CreateTokenRequest Request(const std::string& text, int64_t valid_ms = 0) {
    v1::CreateTokenRequest request;
    request.set_name("ann");
    request.set_role(v1::ROLE_SUBMITTER);
    request.set_valid_ms(valid_ms);
    request.set_secret_sha256(Sha256(text));
    return request;
  }
  absl::StatusOr<v1::Token> Make(const std::string& text, int64_t valid_ms = 0) {
    return registry_->Create(Request(text, valid_ms), "root", kTokenNow);
  }

  const file_testing::TempDirectory directory_;
  const std::string path_ = directory_.Path("tokens");
  std::unique_ptr<TokenRegistry> registry_;
};

TEST_F(TokensTest, ATokenIsFoundByItsTextAlsoAfterARestart) {
  ASSERT_EQ(Make("nibble_one").status(), absl::OkStatus());
  for (int i = 0; i < 2; ++i) {
    const auto found = registry_->Find("nibble_one", kTokenNow);
    ASSERT_EQ(found.status(), absl::OkStatus());
    EXPECT_EQ(found->name(), "ann");
    EXPECT_EQ(found->role(), v1::ROLE_SUBMITTER);
    EXPECT_EQ(found->author(), "root");
    EXPECT_TRUE(absl::IsUnauthenticated(registry_->Find("nibble_two", kTokenNow).status()));
    Reopen();
  }
}

TEST_F(TokensTest, ProjectsAreKeptAndAreNotOfWorkers) {
  v1::CreateTokenRequest request = Request("nibble_one");
  request.add_projects("nlp");
  request.add_projects("speech");
  ASSERT_EQ(registry_->Create(request, "root", kTokenNow).status(), absl::OkStatus());
  Reopen();
  const auto found = registry_->Find("nibble_one", kTokenNow);
  ASSERT_EQ(found.status(), absl::OkStatus());
  EXPECT_THAT(found->projects(), testing::ElementsAre("nlp", "speech"));
  // The same secret with other projects is another token.
  request.mutable_projects()->RemoveLast();
  EXPECT_TRUE(absl::IsAlreadyExists(registry_->Create(request, "root", kTokenNow).status()));
  request = Request("nibble_two");
  request.add_projects("../nlp");
  EXPECT_TRUE(absl::IsInvalidArgument(registry_->Create(request, "root", kTokenNow).status()));
  request.set_projects(0, "nlp");
  request.set_role(v1::ROLE_WORKER);
  EXPECT_TRUE(absl::IsInvalidArgument(registry_->Create(request, "root", kTokenNow).status()));
}

TEST_F(TokensTest, TheFileHasNoSecrets) {
  ASSERT_EQ(Make("nibble_secret").status(), absl::OkStatus());
  const auto text = ReadWholeFile(path_, 1 << 20);
  ASSERT_EQ(text.status(), absl::OkStatus());
  EXPECT_THAT(*text, Not(HasSubstr("secret\"")));
  EXPECT_THAT(*text, Not(HasSubstr("nibble_")));
}

TEST_F(TokensTest, ATokenEndsWithItsTimeOrItsRevocation) {
  ASSERT_EQ(Make("nibble_short", 1000).status(), absl::OkStatus());
  EXPECT_TRUE(registry_->Find("nibble_short", kTokenNow + 999).ok());
  EXPECT_THAT(registry_->Find("nibble_short", kTokenNow + 1000).status().message(),
              HasSubstr("expired"));
  const auto made = Make("nibble_long");
  ASSERT_EQ(made.status(), absl::OkStatus());
  EXPECT_TRUE(registry_->CheckValid(made->id(), kTokenNow).ok());
  const auto revoked = registry_->Revoke(made->id(), "root", kTokenNow + 5);
  ASSERT_EQ(revoked.status(), absl::OkStatus());
  EXPECT_EQ(revoked->revoked_unix_ms(), kTokenNow + 5);
  // A repeat keeps the first time.
  EXPECT_EQ(registry_->Revoke(made->id(), "eve", kTokenNow + 9)->revoked_unix_ms(), kTokenNow + 5);
  Reopen();
  EXPECT_THAT(registry_->Find("nibble_long", kTokenNow).status().message(), HasSubstr("revoked"));
  EXPECT_FALSE(registry_->CheckValid(made->id(), kTokenNow).ok());
  EXPECT_EQ(registry_->List().size(), 2u);
  EXPECT_TRUE(absl::IsNotFound(registry_->Revoke("absent", "root", 0).status()));
}

TEST_F(TokensTest, ARepeatedRequestGetsTheFirstToken) {
  const auto first = Make("nibble_one", 1000);
  ASSERT_EQ(first.status(), absl::OkStatus());
  const auto again = registry_->Create(Request("nibble_one", 1000), "root", kTokenNow + 50);
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(again->created_unix_ms(), kTokenNow);
  EXPECT_TRUE(absl::IsAlreadyExists(Make("nibble_one", 2000).status()));
  EXPECT_EQ(registry_->List().size(), 1u);
}

TEST_F(TokensTest, WrongFieldsAreNamed) {
  v1::CreateTokenRequest request = Request("nibble_one");
  request.set_name("not a name");
  EXPECT_THAT(registry_->Create(request, "root", 0).status().message(), HasSubstr("name: "));
  request = Request("nibble_one");
  request.set_role(v1::ROLE_UNSPECIFIED);
  EXPECT_THAT(registry_->Create(request, "root", 0).status().message(), HasSubstr("role: "));
  request = Request("nibble_one", -1);
  EXPECT_THAT(registry_->Create(request, "root", 0).status().message(), HasSubstr("valid_ms: "));
  request = Request("nibble_one");
  request.set_secret_sha256("nibble_one");
  EXPECT_THAT(registry_->Create(request, "root", 0).status().message(),
              HasSubstr("secret_sha256: 10 bytes; allowed: 32"));
}

TEST_F(TokensTest, ATokenWhoseHashOnlyBeginsAsAKnownOneIsNotThatToken) {
  ASSERT_EQ(Make("nibble_one").status(), absl::OkStatus());
  // The same id, which is the beginning of the hash, and another rest.
  std::string text = file_testing::ContentOf(path_);
  const std::string hash = absl::BytesToHexString(Sha256("nibble_one"));
  const size_t at = text.find(hash);
  ASSERT_NE(at, std::string::npos);
  text[at + hash.size() - 1] = hash.back() == '0' ? '1' : '0';
  std::ofstream(path_) << text;
  Reopen();
  ASSERT_EQ(registry_->List().size(), 1u);
  EXPECT_TRUE(absl::IsUnauthenticated(registry_->Find("nibble_one", kTokenNow).status()));
  // Nor does a request with the hash get it.
  EXPECT_TRUE(absl::IsAlreadyExists(Make("nibble_one").status()));
}

TEST_F(TokensTest, AChangeThatIsNotWrittenHasNoEffect) {
  const auto old = Make("nibble_one");
  ASSERT_EQ(old.status(), absl::OkStatus());
  // What is no regular file is not replaced, whoever runs this.
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_EQ(mkdir(path_.c_str(), 0700), 0);
  EXPECT_FALSE(Make("nibble_two").ok());
  EXPECT_TRUE(absl::IsUnauthenticated(registry_->Find("nibble_two", kTokenNow).status()));
  EXPECT_FALSE(registry_->Revoke(old->id(), "root", kTokenNow).ok());
  EXPECT_EQ(registry_->Find("nibble_one", kTokenNow).status(), absl::OkStatus());
  EXPECT_EQ(registry_->CheckValid(old->id(), kTokenNow), absl::OkStatus());
  // Nor is it made durable by the next change.
  ASSERT_EQ(rmdir(path_.c_str()), 0);
  ASSERT_EQ(Make("nibble_three").status(), absl::OkStatus());
  Reopen();
  EXPECT_EQ(registry_->List().size(), 2u);
  EXPECT_EQ(registry_->Find("nibble_one", kTokenNow).status(), absl::OkStatus());
}

TEST_F(TokensTest, AFullTableForgetsTheOldestTokenThatHasEndedAndNoValidOne) {
  Reopen(/*most=*/3);
  const auto make = [this](const std::string& text, int64_t now_ms) {
    return registry_->Create(Request(text), "root", now_ms);
  };
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    const auto made = make(absl::StrCat("nibble_", i), kTokenNow + i);
    ASSERT_EQ(made.status(), absl::OkStatus());
    ids.push_back(made->id());
  }
  const absl::Status full = make("nibble_3", kTokenNow).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(full.message(), HasSubstr("3 are valid; allowed: 3"));
  for (const int i : {1, 2}) {
    ASSERT_EQ(registry_->Revoke(ids[i], "root", kTokenNow + 9).status(), absl::OkStatus());
  }
  ASSERT_EQ(make("nibble_3", kTokenNow + 9).status(), absl::OkStatus());
  EXPECT_EQ(registry_->List().size(), 3u);
  EXPECT_EQ(registry_->Find("nibble_0", kTokenNow + 9).status(), absl::OkStatus());
  EXPECT_THAT(registry_->CheckValid(ids[1], kTokenNow + 9).message(), HasSubstr("no longer known"));
  EXPECT_THAT(registry_->CheckValid(ids[2], kTokenNow + 9).message(), HasSubstr("revoked"));
}

TEST_F(TokensTest, BoundsAreInclusive) {
  constexpr int64_t kTenYearsMs = int64_t{10} * 366 * 86'400'000;
  EXPECT_EQ(Make("nibble_one", kTenYearsMs).status(), absl::OkStatus());
  EXPECT_TRUE(absl::IsInvalidArgument(Make("nibble_two", kTenYearsMs + 1).status()));
  v1::CreateTokenRequest request = Request("nibble_three");
  for (size_t i = 0; i < kMaxTokenProjects; ++i) request.add_projects(absl::StrCat("p", i));
  EXPECT_EQ(registry_->Create(request, "root", kTokenNow).status(), absl::OkStatus());
  request = Request("nibble_four");
  for (size_t i = 0; i <= kMaxTokenProjects; ++i) request.add_projects(absl::StrCat("p", i));
  EXPECT_TRUE(absl::IsInvalidArgument(registry_->Create(request, "root", kTokenNow).status()));
}

TEST_F(TokensTest, TokensAreListedByTimeOfCreation) {
  for (const int64_t at : {5, 3, 4, 1, 2}) {
    ASSERT_EQ(registry_->Create(Request(absl::StrCat("nibble_", at)), "root", at).status(),
              absl::OkStatus());
  }
  std::vector<int64_t> times;
  for (const v1::Token& token : registry_->List()) times.push_back(token.created_unix_ms());
  EXPECT_THAT(times, testing::ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(TokensTest, NamesOfTheCoordinatorsOwnAuthorsAreReserved) {
  for (const char* name : {"coordinator", "guard", "bootstrap"}) {
    v1::CreateTokenRequest request = Request("nibble_one");
    request.set_name(name);
    const absl::Status refused = registry_->Create(request, "root", kTokenNow).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << name;
    EXPECT_THAT(refused.message(), HasSubstr(absl::StrCat("name: '", name, "' is reserved")));
  }
}

TEST_F(TokensTest, ADamagedFileIsNotAnEmptyOne) {
  for (const char* text :
       {"", "{", "{}", R"({"tokens":[{}]})", R"({"tokens":[{"sha256":"00"}]})"}) {
    std::ofstream(path_) << text;
    EXPECT_TRUE(absl::IsDataLoss(TokenRegistry::Open(path_).status())) << text;
  }
}

}  // namespace
}  // namespace nibble
