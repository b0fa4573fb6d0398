// A whole cluster with TLS and tokens, as its users see it: a job over two workers, its logs,
// tokens of people, and the audit log.
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"
#include "tests/cluster/tiny_job.h"
#include "tests/processes/processes.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

class SecureClusterTest : public testing::Test {
 protected:
  SecureClusterTest() {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
    fs::create_directories(root_ + "/tmp");
    WriteCorpus(root_ + "/corpus.txt", 40);
  }
  ~SecureClusterTest() override {
    EXPECT_EQ(Nibble("cluster down --grace 1").code, 0);
    fs::remove_all(root_);
  }
  // The output includes standard error.
  ShellResult Nibble(const std::string& arguments, const std::string& variables = "") const {
    return Shell(absl::StrCat("TMPDIR=", root_, "/tmp NIBBLE_HOME=", root_, " ", variables, " ",
                              NibbleProgram(), " ", arguments, " 2>&1"));
  }
  ShellResult Up() const {
    const ClusterPrograms programs = TestPrograms();
    umask(S_IWGRP | S_IWOTH);  // as most people's: what the programs do is their own
    return Nibble(absl::StrCat("cluster up --secure --coordinator-program ", programs.coordinator,
                               " --worker-program ", programs.worker, " --trainer-program ",
                               programs.trainer));
  }

  std::string root_ = "/tmp/nibble-secure-XXXXXX";
};

TEST_F(SecureClusterTest, JobsRunOverTlsAndPeopleHaveTokens) {
  const ShellResult up = Up();
  ASSERT_EQ(up.code, 0) << up.text;
  std::ofstream(root_ + "/job.yaml")
      << TinyJob{.ranks = 2, .steps = 60, .every = 20}.Yaml(root_ + "/corpus.txt");

  const ShellResult made = Nibble("token create ann --role submitter --file " + root_ + "/ann");
  ASSERT_EQ(made.code, 0) << made.text;
  EXPECT_THAT(made.text, Not(HasSubstr("nibble_")));
  const std::string as_ann = absl::StrCat("NIBBLE_TOKEN_FILE=", root_, "/ann");
  ASSERT_EQ(Nibble("token create vic --role viewer --file " + root_ + "/vic").code, 0);
  const std::string as_vic = absl::StrCat("NIBBLE_TOKEN_FILE=", root_, "/vic");

  const ShellResult submitted = Nibble("job submit " + root_ + "/job.yaml", as_ann);
  ASSERT_EQ(submitted.code, 0) << submitted.text;
  const ShellResult waited = Nibble("job wait run-1 --timeout 300s", as_vic);
  EXPECT_EQ(waited.code, 0) << waited.text;
  const ShellResult described = Nibble("job describe run-1 -o json", as_vic);
  EXPECT_THAT(described.text, HasSubstr(R"("owner": "ann")"));
  // Two workers, whose ranks met over TLS and whose shards are on each other's disk.
  EXPECT_THAT(described.text, HasSubstr("worker-1"));
  EXPECT_THAT(described.text, HasSubstr("worker-2"));
  const ShellResult logs = Nibble("job logs run-1", as_vic);
  EXPECT_EQ(logs.code, 0) << logs.text;

  const ShellResult killed = Nibble("job kill run-1", as_vic);
  EXPECT_EQ(killed.code, 1);
  EXPECT_THAT(killed.text, HasSubstr("vic is viewer; allowed: submitter and above"));

  const ShellResult listed = Nibble("token list -o json");
  ASSERT_EQ(listed.code, 0) << listed.text;
  std::string id;
  const nlohmann::json tokens = listed.json();
  for (const auto& token : tokens.at("tokens")) {
    if (token["name"] == "ann") id = token["id"];
  }
  EXPECT_EQ(Nibble("token revoke " + id).code, 0);
  const ShellResult revoked = Nibble("job list", as_ann);
  EXPECT_EQ(revoked.code, 1);
  EXPECT_THAT(revoked.text, HasSubstr("it is revoked"));

  const std::string audit = TextOf(root_ + "/cluster/log/audit.jsonl");
  EXPECT_THAT(audit, HasSubstr(R"("who":"ann","role":"submitter")"));
  EXPECT_THAT(audit, HasSubstr(R"("subject":"job run-1")"));
  EXPECT_THAT(audit, HasSubstr(R"("outcome":"refused")"));
  EXPECT_THAT(audit, HasSubstr(R"("peer":"nibble://worker/worker-2")"));

  // Nothing that coordinator, workers and ranks have written is for others.
  int files_checked = 0;
  for (const auto& entry : fs::recursive_directory_iterator(root_ + "/cluster")) {
    // Certificates, and the records of `nibble cluster`, are its own.
    const fs::path below = fs::relative(entry.path(), root_ + "/cluster");
    if (!entry.is_regular_file() || !below.has_parent_path() || *below.begin() == "identity") {
      continue;
    }
    ++files_checked;
    EXPECT_EQ(entry.status().permissions() & fs::perms::others_all, fs::perms::none)
        << entry.path();
    EXPECT_EQ(entry.status().permissions() & fs::perms::group_write, fs::perms::none)
        << entry.path();
  }
  EXPECT_GT(files_checked, 20);

  // A caller without certificates gets nowhere.
  const ShellResult plain =
      Shell(absl::StrCat("NIBBLE_HOME=", root_,
                         "/none NIBBLE_SERVER=", TextOf(root_ + "/cluster/address").substr(0, 21),
                         " ", NibbleProgram(), " job list --timeout 2s 2>&1"));
  EXPECT_EQ(plain.code, 1);
  EXPECT_THAT(plain.text, HasSubstr("no answer"));
}

TEST_F(SecureClusterTest, AClusterStaysSecureUntilItIsPurged) {
  ASSERT_EQ(Up().code, 0);
  const ShellResult down = Nibble("cluster down --grace 1");
  ASSERT_EQ(down.code, 0) << down.text;
  const ClusterPrograms programs = TestPrograms();
  const ShellResult again = Nibble(
      absl::StrCat("cluster up --workers 3 --coordinator-program ", programs.coordinator,
                   " --worker-program ", programs.worker, " --trainer-program ", programs.trainer));
  ASSERT_EQ(again.code, 0) << again.text;
  const ShellResult status = Nibble("cluster status -o json");
  EXPECT_EQ(status.json()["processes"][3]["present"], true);
  EXPECT_EQ(Nibble("worker list", "NIBBLE_TOKEN=nibble_wrong").code, 1);
  EXPECT_EQ(Nibble("worker list").code, 0);
  ASSERT_EQ(Nibble("cluster down --grace 1 --purge").code, 0);
  EXPECT_FALSE(fs::exists(root_ + "/cluster/identity"));
}

}  // namespace
}  // namespace nibble
