#include "worker/checkpoint/disk.h"

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(DiskTest, NoSpaceOfAnyKindIsResourceExhausted) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) {
    const absl::Status status = ErrnoStatus(error, "writing /a/b");
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("writing /a/b"));
  }
  EXPECT_TRUE(absl::IsNotFound(ErrnoStatus(ENOENT, "opening /a/b")));
}

TEST(DiskTest, ReplacedFileHasTheOldContentOrTheNew) {
  const checkpoint_testing::TempDirectory directory;
  const std::string path = directory.path() + "/file";
  ASSERT_EQ(ReplaceFile(path, "old", nullptr), absl::OkStatus());
  checkpoint_testing::WriteHook full([](const std::string&, int64_t) { return ENOSPC; });
  EXPECT_TRUE(absl::IsResourceExhausted(ReplaceFile(path, "new", &full)));
  EXPECT_EQ(*ReadWholeFile(path), "old");
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  ASSERT_EQ(ReplaceFile(path, "new", nullptr), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(path), "new");
}

TEST(DiskTest, FileThatIsNotThereIsNotFound) {
  const checkpoint_testing::TempDirectory directory;
  EXPECT_TRUE(absl::IsNotFound(ReadWholeFile(directory.path() + "/none").status()));
}

TEST(DiskTest, TreeIsCountedAndRemoved) {
  const checkpoint_testing::TempDirectory directory;
  const std::string tree = directory.path() + "/tree";
  EXPECT_EQ(TreeBytes(tree), 0);
  EXPECT_EQ(RemoveTree(tree), absl::OkStatus());
  std::filesystem::create_directories(tree + "/deep");
  std::ofstream(tree + "/deep/file") << std::string(100'000, 'x');
  EXPECT_GE(TreeBytes(tree), 100'000);
  EXPECT_EQ(RemoveTree(tree), absl::OkStatus());
  EXPECT_FALSE(std::filesystem::exists(tree));
}

}  // namespace
}  // namespace nibble
