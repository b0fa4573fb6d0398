#include "client/remote/client_access.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/files/files_testing.h"
#include "common/identity/credentials.h"
#include "common/identity/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHere[] = "127.0.0.1:7700";
constexpr char kElsewhere[] = "train.example:7700";

class ClientAccessTest : public testing::Test {
 protected:
  ClientAccessTest() {
    Forget();
    setenv("NIBBLE_HOME", directory_.path().c_str(), 1);
  }
  ~ClientAccessTest() override { Forget(); }  // other tests of this program send no token
  static void Forget() {
    for (const char* const name : {"NIBBLE_TOKEN", "NIBBLE_TOKEN_FILE", "NIBBLE_TLS_CERT",
                                   "NIBBLE_TLS_KEY", "NIBBLE_TLS_CA", "NIBBLE_HOME"}) {
      unsetenv(name);
    }
  }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_.Path(name)) << text;
    return directory_.Path(name);
  }

  const file_testing::TempDirectory directory_;
};

TEST_F(ClientAccessTest, WithoutAnythingThereIsNoTokenAndNoTls) {
  const auto access = FindAccess({}, kElsewhere);
  ASSERT_EQ(access.status(), absl::OkStatus());
  EXPECT_EQ(access->token, "");
  EXPECT_FALSE(access->credentials->secure());
}

TEST_F(ClientAccessTest, TheFlagOverridesTheVariables) {
  setenv("NIBBLE_TOKEN_FILE", Write("a", " token-a\n").c_str(), 1);
  EXPECT_EQ(FindAccess({}, kHere)->token, "token-a");
  setenv("NIBBLE_TOKEN", "token-b", 1);
  EXPECT_EQ(FindAccess({}, kHere)->token, "token-b");
  EXPECT_EQ(FindAccess({.token_file = Write("c", "token-c")}, kHere)->token, "token-c");
  EXPECT_THAT(FindAccess({.token_file = directory_.Path("absent")}, kHere).status().message(),
              HasSubstr("--token-file"));
  EXPECT_THAT(FindAccess({.token_file = Write("d", "\n")}, kHere).status().message(),
              HasSubstr("is empty"));
}

TEST_F(ClientAccessTest, ATokenIsNotSentToAnotherMachineWithoutTls) {
  setenv("NIBBLE_TOKEN", "secret", 1);
  const absl::Status refused = FindAccess({}, kElsewhere).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_THAT(refused.message(), HasSubstr("--tls-cert"));
  EXPECT_THAT(refused.message(), Not(HasSubstr("secret")));
  const TestAuthority authority(directory_.path(), "lab");
  const TlsFiles files = authority.Issue("ann", {PeerKind::kClient, "ann"});
  setenv("NIBBLE_TLS_CERT", files.certificate.c_str(), 1);
  setenv("NIBBLE_TLS_KEY", files.key.c_str(), 1);
  EXPECT_THAT(FindAccess({}, kElsewhere).status().message(), HasSubstr("--tls-ca: not given"));
  setenv("NIBBLE_TLS_CA", files.authority.c_str(), 1);
  const auto access = FindAccess({}, kElsewhere);
  ASSERT_EQ(access.status(), absl::OkStatus());
  EXPECT_TRUE(access->credentials->secure());
  EXPECT_EQ(access->token, "secret");
}

TEST_F(ClientAccessTest, TheLocalClustersFilesAreForItsAddressAlone) {
  const std::string cluster = directory_.Path("cluster");
  const LocalIdentity files(cluster);
  std::filesystem::create_directories(files.directory);
  const TestAuthority authority(files.directory, "lab");
  const TlsFiles client = authority.Issue("client", {PeerKind::kClient, "client"});
  std::filesystem::copy_file(client.authority, files.Authority());
  std::ofstream(files.Token()) << "local-token\n";
  std::ofstream(cluster + "/address") << kHere << "\n";
  const auto access = FindAccess({}, kHere);
  ASSERT_EQ(access.status(), absl::OkStatus());
  EXPECT_TRUE(access->credentials->secure());
  EXPECT_EQ(access->token, "local-token");
  EXPECT_EQ(FindAccess({}, "127.0.0.1:7701")->token, "");
  setenv("NIBBLE_TOKEN", "mine", 1);
  EXPECT_EQ(FindAccess({}, kHere)->token, "mine");
}

}  // namespace
}  // namespace nibble
