#include "common/files/files.h"

#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "common/files/files_testing.h"
#include "common/files/power_testing.h"
#include "common/files/staged_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using file_testing::TempDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kPlenty = size_t{1} << 20;

TEST(ReadWholeFileTest, AFileOfTheAllowedLengthIsReadAndALongerOneRefusedWithItsLength) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/file";
  std::ofstream(path) << "0123456789";
  EXPECT_EQ(*ReadWholeFile(path, 10), "0123456789");
  const auto refused = ReadWholeFile(path, 9);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("10 bytes are more than 9"));
}

TEST(ReadWholeFileTest, ADirectoryIsRefusedAndAMissingFileIsNotFound) {
  const TempDirectory directory;
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadWholeFile(directory.path(), kPlenty).status()));
  EXPECT_TRUE(absl::IsNotFound(ReadWholeFile(directory.path() + "/none", kPlenty).status()));
}

TEST(ReadWholeFileTest, APipeWithoutAWriterIsRefusedAtOnce) {
  const TempDirectory directory;
  const std::string path = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadWholeFile(path, kPlenty).status()));
}

TEST(ReadWholeFileTest, AFileThatReportsNoSizeIsReadToItsEnd) {
  const auto stat = ReadWholeFile("/proc/self/stat", kPlenty);
  ASSERT_TRUE(stat.ok()) << stat.status();
  EXPECT_GT(stat->size(), 20u);
}

TEST(RemoveTreeTest, ATreeIsMeasuredAndRemoved) {
  const TempDirectory directory;
  const std::string tree = directory.path() + "/tree";
  EXPECT_EQ(TreeBytes(tree), 0);
  EXPECT_EQ(RemoveTree(tree), absl::OkStatus());
  ASSERT_EQ(MakeDirectories(tree + "/deep"), absl::OkStatus());
  ASSERT_EQ(MakeDirectories(tree + "/deep"), absl::OkStatus());
  std::ofstream(tree + "/deep/file") << std::string(100'000, 'x');
  EXPECT_GE(TreeBytes(tree), 100'000);
  EXPECT_EQ(RemoveTree(tree), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(tree));
}

TEST(MakeDirectoriesTest, EachSurvivesAPowerFailureAndAFileInTheWayIsNamed) {
  const TempDirectory directory, disk;
  file_testing::PowerCuts power(directory.path());
  ASSERT_EQ(MakeDirectories(directory.Path("a/b/c"), &power), absl::OkStatus());
  power.Note(1);
  ASSERT_EQ(MakeDirectories(directory.Path("a/b/d/"), &power), absl::OkStatus());
  power.Note(2);
  power.ForEach(disk.path(), [&disk](int64_t made) {
    ASSERT_TRUE(made < 1 || std::filesystem::is_directory(disk.Path("a/b/c")));
    ASSERT_TRUE(made < 2 || std::filesystem::is_directory(disk.Path("a/b/d")));
  });
  std::ofstream(directory.Path("file")) << "x";
  for (const char* const name : {"file", "file/below"}) {
    const absl::Status status = MakeDirectories(directory.Path(name));
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory.Path("file")));
  }
}

TEST(RenameInsideTest, ARenameSurvivesAPowerFailure) {
  const TempDirectory directory, disk;
  std::ofstream(directory.Path("a")) << "x";
  file_testing::PowerCuts power(directory.path());
  ASSERT_EQ(RenameInside(directory.path(), "a", "b", &power), absl::OkStatus());
  power.Note(1);
  power.ForEach(disk.path(), [&disk](int64_t renamed) {
    const bool is_new = std::filesystem::exists(disk.Path("b"));
    ASSERT_NE(is_new, std::filesystem::exists(disk.Path("a")));
    ASSERT_TRUE(is_new || renamed == 0);
  });
}

TEST(RenameInsideTest, ANameIsReplacedAndAMissingOneIsNamed) {
  const TempDirectory directory;
  std::ofstream(directory.path() + "/a") << "x";
  ASSERT_EQ(RenameInside(directory.path(), "a", "b"), absl::OkStatus());
  EXPECT_THAT(*ListDirectory(directory.path()), ElementsAre("b"));
  const absl::Status status = RenameInside(directory.path(), "a", "b");
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory.path() + "/a"));
}

}  // namespace
}  // namespace nibble
