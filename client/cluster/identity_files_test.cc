#include "client/cluster/identity_files.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "client/remote/client_access.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "common/identity/credentials.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr int64_t kIssuedAt = 1'800'000'000;

TEST(IdentityFiles, EveryProgramGetsItsNameAndKeysAreForTheirOwner) {
  const file_testing::TempDirectory root;
  const std::string directory = root.Path("identity");
  const auto issued = IssueIdentityFiles(
      directory, {.workers = {"w1"}, .clients = {"ann"}, .hosts = {"localhost"}}, kIssuedAt);
  ASSERT_EQ(issued.status(), absl::OkStatus());
  EXPECT_THAT(*issued, testing::ElementsAre("coordinator", "w1", "ann"));
  const LocalIdentity files(root.path());
  const auto worker =
      Credentials::Make({files.Certificate("w1"), files.Key("w1"), files.Authority()});
  ASSERT_EQ(worker.status(), absl::OkStatus());
  EXPECT_EQ((*worker)->own_name().ToString(), "nibble://worker/w1");
  struct stat entry = {};
  ASSERT_EQ(stat(files.Key("ca").c_str(), &entry), 0);
  EXPECT_EQ(entry.st_mode & 0777, 0600u);
}

TEST(IdentityFiles, WhenCertificatesExpireIsReadByTheirNames) {
  const file_testing::TempDirectory root;
  const LocalIdentity files(root.path());
  ASSERT_TRUE(IssueIdentityFiles(files.directory, {.workers = {"w1"}, .days = 30}, kIssuedAt).ok());
  std::ofstream(files.directory + "/notes.pem") << "no certificate";
  const auto expiries = ReadIdentityExpiries(files.directory);
  ASSERT_EQ(expiries.size(), 3u);
  EXPECT_EQ(expiries[0].certificate, "ca");
  EXPECT_EQ(expiries[0].unix_s, kIssuedAt + int64_t{3650} * 86'400);
  EXPECT_EQ(expiries[1].certificate, "coordinator");
  EXPECT_EQ(expiries[2].certificate, "w1");
  EXPECT_EQ(expiries[2].unix_s, kIssuedAt + 30 * 86'400);
  EXPECT_EQ(expiries[2].path, files.Certificate("w1"));
  EXPECT_TRUE(ReadIdentityExpiries(root.Path("nowhere")).empty());
}

TEST(IdentityFiles, TheAuthorityStaysAndOnlyMissingCertificatesAreAdded) {
  const file_testing::TempDirectory root;
  const LocalIdentity files(root.path());
  ASSERT_TRUE(IssueIdentityFiles(files.directory, {.workers = {"w1"}}, kIssuedAt).ok());
  const std::string authority = *ReadWholeFile(files.Authority(), 1 << 20);
  const std::string first = *ReadWholeFile(files.Certificate("w1"), 1 << 20);
  EXPECT_THAT(
      *IssueIdentityFiles(files.directory, {.workers = {"w1", "w2"}, .missing = true}, kIssuedAt),
      testing::ElementsAre("w2"));
  EXPECT_EQ(*ReadWholeFile(files.Certificate("w1"), 1 << 20), first);
  EXPECT_THAT(*IssueIdentityFiles(files.directory, {.workers = {"w1"}}, kIssuedAt),
              testing::ElementsAre("coordinator", "w1"));
  EXPECT_NE(*ReadWholeFile(files.Certificate("w1"), 1 << 20), first);
  EXPECT_EQ(*ReadWholeFile(files.Authority(), 1 << 20), authority);
}

TEST(IdentityFiles, NamesThatAreNoFilesOrAreTakenAreRefused) {
  const file_testing::TempDirectory root;
  for (const char* name : {"../w1", "a/b", "", "ca", "coordinator"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(
        IssueIdentityFiles(root.Path("x"), {.workers = {name}}, kIssuedAt).status()))
        << name;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(
      IssueIdentityFiles(root.Path("x"), {.workers = {"w"}, .clients = {"w"}}, kIssuedAt)
          .status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      IssueIdentityFiles(root.Path("x"), {.hosts = {"a b"}}, kIssuedAt).status()));
}

}  // namespace
}  // namespace nibble
