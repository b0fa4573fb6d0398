#include "common/files/staged_file.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "common/files/files.h"
#include "common/files/files_testing.h"
#include "common/files/power_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

using Existing = StagedDirectory::Existing;
using file_testing::PowerCuts;
using file_testing::TempDirectory;
using file_testing::WriteHook;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr char kMarker[] = "config.json";

class StagedTest : public ::testing::Test {
 protected:
  std::string Path(std::string_view name) const {
    return directory_.path() + "/" + std::string(name);
  }
  std::string Read(std::string_view name) const {
    return ReadWholeFile(Path(name), size_t{1} << 20).value_or("(cannot be read)");
  }
  void Put(std::string_view name, std::string_view text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  std::vector<std::string> Names(std::string_view name = "") const {
    std::vector<std::string> names = *ListDirectory(Path(name));
    std::sort(names.begin(), names.end());
    return names;
  }

  const TempDirectory directory_;
  const TempDirectory disk_;  // after a power failure
};

using StagedFileTest = StagedTest;
using StagedDirectoryTest = StagedTest;

TEST_F(StagedFileTest, AReplacedFileHasTheOldContentOrTheNew) {
  ASSERT_EQ(ReplaceFile(Path("file"), "old"), absl::OkStatus());
  WriteHook full([](const std::string&, int64_t) { return ENOSPC; });
  EXPECT_TRUE(absl::IsResourceExhausted(ReplaceFile(Path("file"), "new", &full)));
  EXPECT_EQ(Read("file"), "old");
  EXPECT_THAT(Names(), ElementsAre("file"));
  ASSERT_EQ(ReplaceFile(Path("file"), "new"), absl::OkStatus());
  EXPECT_EQ(Read("file"), "new");
  EXPECT_THAT(Names(), ElementsAre("file"));
}

TEST_F(StagedFileTest, AFileCanBePatchedBeforeItAppears) {
  auto file = StagedFile::Create(Path("file"));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string text(300'000, 'x');
  ASSERT_EQ((*file)->Append(AsBytes(text)), absl::OkStatus());
  ASSERT_EQ((*file)->Append(AsBytes(std::string("end"))), absl::OkStatus());
  ASSERT_EQ((*file)->Overwrite(1, AsBytes(std::string("head"))), absl::OkStatus());
  EXPECT_FALSE(fs::exists(Path("file")));
  ASSERT_EQ((*file)->Publish(), absl::OkStatus());
  EXPECT_EQ(Read("file"), "xhead" + text.substr(5) + "end");
}

TEST_F(StagedFileTest, AnUnpublishedFileLeavesNothing) {
  ASSERT_TRUE(StagedFile::Create(Path("file")).ok());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StagedFileTest, ALinkIsNotReplaced) {
  Put("target", "text");
  fs::create_symlink(Path("target"), Path("link"));
  EXPECT_TRUE(absl::IsFailedPrecondition(ReplaceFile(Path("link"), "new")));
  EXPECT_EQ(Read("target"), "text");
}

TEST_F(StagedFileTest, TheContentIsSyncedThenTheFileIsRenamedThenItsNameIsSynced) {
  PowerCuts power(directory_.path());
  ASSERT_EQ(ReplaceFile(Path("file"), "new", &power), absl::OkStatus());
  EXPECT_THAT(power.operations(),
              ElementsAre(StartsWith("write file.tmp-"), StartsWith("sync file.tmp-"),
                          "rename file", "sync directory "));
}

TEST_F(StagedFileTest, AfterAPowerFailureAReplacedFileHasTheOldContentOrTheNew) {
  Put("file", "old");
  PowerCuts power(directory_.path());
  ASSERT_EQ(ReplaceFile(Path("file"), "new", &power), absl::OkStatus());
  power.Note(1);
  power.ForEach(disk_.path(), [this](int64_t replaced) {
    const std::string content = file_testing::ContentOf(disk_.Path("file"));
    if (replaced == 1) {
      ASSERT_EQ(content, "new");
    } else {
      ASSERT_THAT(content, AnyOf("old", "new"));
    }
  });
}

TEST_F(StagedFileTest, OnlyTemporaryFilesOfKilledProcessesAreLeftovers) {
  const std::vector<std::string> kept = {"c.tmp",       "d.tmp-1",   "e.tmp-x-1",
                                         "f.tmp--5",    "g.tmp-12-", "h.tmp-1-x",
                                         "i.tmp-1-2-3", "j.tmp-",    "k"};
  for (const std::string& name : kept) Put(name, "x");
  for (const char* name : {"a.tmp-12-0", "b.tmp-1-23", "c.tmp-1-1.tmp-1-1"}) Put(name, "x");
  ASSERT_EQ(RemoveStagedLeftovers(directory_.path()), absl::OkStatus());
  EXPECT_EQ(Names(), kept);
  EXPECT_EQ(RemoveStagedLeftovers(Path("none")), absl::OkStatus());
}

TEST_F(StagedDirectoryTest, ItAppearsCompleteOnCommitAndNotBefore) {
  auto staged = StagedDirectory::Create(Path("model"), Existing::kRefuse, kMarker);
  ASSERT_TRUE(staged.ok()) << staged.status();
  ASSERT_TRUE((*staged)->Write("a", "one").ok());
  EXPECT_FALSE(fs::exists(Path("model")));
  ASSERT_TRUE((*staged)->Commit().ok());
  EXPECT_EQ(Read("model/a"), "one");
  staged->reset();
  EXPECT_THAT(Names(), ElementsAre("model"));
}

TEST_F(StagedDirectoryTest, ItLeavesNothingWithoutCommit) {
  {
    auto staged = StagedDirectory::Create(Path("model"), Existing::kRefuse, kMarker);
    ASSERT_TRUE(staged.ok());
    ASSERT_TRUE((*staged)->Write("a", "one").ok());
  }
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StagedDirectoryTest, AnExistingPathIsRefused) {
  fs::create_directory(Path("model"));
  EXPECT_TRUE(absl::IsAlreadyExists(
      StagedDirectory::Create(Path("model/"), Existing::kRefuse, kMarker).status()));
}

TEST_F(StagedDirectoryTest, ADirectoryWithTheMarkerIsReplacedAtomically) {
  fs::create_directory(Path("model"));
  Put("model/config.json", "{}");
  Put("model/old", "old");
  auto staged = StagedDirectory::Create(Path("model"), Existing::kReplace, kMarker);
  ASSERT_TRUE(staged.ok()) << staged.status();
  ASSERT_TRUE((*staged)->Write("new", "new").ok());
  EXPECT_EQ(Read("model/old"), "old");
  const absl::Status status = (*staged)->Commit();
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(Names("model"), ElementsAre("new"));
  EXPECT_THAT(Names(), ElementsAre("model"));
}

TEST_F(StagedDirectoryTest, AfterAPowerFailureItIsTheOldOneOrTheNewEachWithItsFiles) {
  fs::create_directory(Path("model"));
  Put("model/config.json", "{}");
  Put("model/old", "old");
  PowerCuts power(directory_.path());
  const auto write = [&](const std::string& name, Existing existing) {
    auto staged = StagedDirectory::Create(Path(name), existing, kMarker, &power);
    ASSERT_TRUE(staged.ok()) << staged.status();
    ASSERT_EQ(MakeDirectories((*staged)->PathOf("deep/er"), &power), absl::OkStatus());
    ASSERT_EQ((*staged)->Write("deep/er/new", "new"), absl::OkStatus());
    ASSERT_EQ((*staged)->Commit(), absl::OkStatus());
  };
  write("other", Existing::kRefuse);
  power.Note(1);
  write("model", Existing::kReplace);
  power.Note(2);
  power.ForEach(disk_.path(), [this](int64_t written) {
    const auto is_new = [this](const std::string& name) {
      return ReadWholeFile(disk_.Path(name + "/deep/er/new"), 10).value_or("") == "new";
    };
    const auto is_old = [this] {
      return ReadWholeFile(disk_.Path("model/config.json"), 10).value_or("") == "{}" &&
             ReadWholeFile(disk_.Path("model/old"), 10).value_or("") == "old";
    };
    ASSERT_TRUE(is_new("other") || (written == 0 && !fs::exists(disk_.Path("other"))));
    ASSERT_TRUE(is_new("model") || (written < 2 && is_old()));
  });
}

TEST_F(StagedDirectoryTest, ADirectoryWithoutTheMarkerIsNotReplaced) {
  fs::create_directory(Path("home"));
  Put("home/letter", "dear");
  Put("file", "text");
  fs::create_directory(Path("empty"));
  fs::create_directory_symlink(Path("empty"), Path("link"));
  for (const char* name : {"home", "file", "link"}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(
        StagedDirectory::Create(Path(name), Existing::kReplace, kMarker).status()))
        << name;
  }
  EXPECT_EQ(Read("home/letter"), "dear");
  EXPECT_TRUE(StagedDirectory::Create(Path("empty"), Existing::kReplace, kMarker).ok());
}

TEST_F(StagedDirectoryTest, ANameTakenMeanwhileIsNotReplaced) {
  auto staged = StagedDirectory::Create(Path("model"), Existing::kRefuse, kMarker);
  ASSERT_TRUE(staged.ok());
  fs::create_directory(Path("model"));  // empty: a plain rename would replace it
  EXPECT_TRUE(absl::IsAlreadyExists((*staged)->Commit()));
  staged->reset();
  EXPECT_THAT(Names(), ElementsAre("model"));
}

TEST_F(StagedDirectoryTest, AMissingParentIsNotMade) {
  EXPECT_TRUE(absl::IsNotFound(
      StagedDirectory::Create(Path("no/model"), Existing::kRefuse, kMarker).status()));
}

}  // namespace
}  // namespace nibble
