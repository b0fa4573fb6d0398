// What a person deletes goes to the workers' trash, and comes back from it; the history says who
// ordered it.
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cluster/cluster_files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cluster/cluster_bed.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The number of sealed shards below the directory.
int SealedBelow(const std::string& directory) {
  int sealed = 0;
  std::error_code ignored;
  for (auto at = fs::recursive_directory_iterator(directory, ignored);
       at != fs::recursive_directory_iterator(); at.increment(ignored)) {
    if (at->path().extension() == ".seal") ++sealed;
  }
  return sealed;
}

TEST(Trash, ADeletedCheckpointIsRestoredAndTheHistorySaysWhoOrderedIt) {
  ClusterBed bed({.workers = 2, .coordinator_flags = {"--copies", "2"}});
  const std::string job = bed.Submit({.ranks = 2, .steps = 200, .every = 50, .keep_last = 4});
  bed.ExpectState(job, v1::JOB_STATE_SUCCEEDED);
  const auto nibble = [&](const std::string& command) {
    return Shell(absl::StrCat(NibbleProgram(), " checkpoint ", command, " --server ", bed.address(),
                              " 2>&1"));
  };
  const auto has = [&](int64_t step) {
    for (const v1::Checkpoint& checkpoint : bed.Checkpoints(job)) {
      if (checkpoint.ref().step() == step) return true;
    }
    return false;
  };
  ASSERT_TRUE(has(100)) << bed.Story(job);
  const ShellResult deleted = nibble("delete " + job + "@100 --reason 'a typing mistake'");
  ASSERT_EQ(deleted.code, 0) << deleted.text;
  EXPECT_FALSE(has(100));
  const auto in_trash = [&] {
    int sealed = 0;
    for (const int worker : {1, 2}) {
      sealed += SealedBelow(bed.cluster().paths().Data(WorkerRole(worker)) + "/trash/" + job);
    }
    return sealed;
  };
  ASSERT_TRUE(Eventually([&] { return in_trash() >= 2; })) << bed.Story(job);
  const ShellResult history = nibble("history " + job);
  EXPECT_EQ(history.code, 0) << history.text;
  EXPECT_THAT(history.text, HasSubstr("a typing mistake"));
  EXPECT_THAT(history.text, HasSubstr("requested"));
  ShellResult listed;
  ASSERT_TRUE(Eventually([&] {
    listed = nibble("trash list " + job);
    return listed.text.find("100") != std::string::npos;
  })) << listed.text;

  ShellResult restored;
  ASSERT_TRUE(Eventually([&] {
    restored = nibble("trash restore " + job + " 100 --reason 'it was the wrong one'");
    return restored.code == 0;
  })) << restored.text;
  ASSERT_TRUE(Eventually([&] { return has(100); })) << nibble("history " + job).text;
  const ShellResult verified = nibble("verify " + job + "@100");
  EXPECT_EQ(verified.code, 0) << verified.text;
}

}  // namespace
}  // namespace nibble
