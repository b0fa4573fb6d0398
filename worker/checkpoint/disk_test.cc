#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/disk.h"
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

using ::testing::HasSubstr;

constexpr int64_t kBuffer = DirectFile::kBufferBytes;

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

std::string RandomText(int64_t size) {
  std::mt19937_64 random(size);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(DirectFileTest, HoldsExactlyWhatWasAppended) {
  const checkpoint_testing::TempDirectory directory;
  const std::string path = directory.path() + "/file";
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4096}, kBuffer - 1, kBuffer,
                             kBuffer + 1, 3 * kBuffer + 4097}) {
    const std::string text = RandomText(size);
    auto file = DirectFile::Create(path, nullptr);
    ASSERT_TRUE(file.ok()) << file.status();
    // In pieces of odd sizes.
    for (int64_t at = 0; at < size; at += 777'777) {
      ASSERT_EQ((*file)->Append(Bytes(text.substr(at, 777'777))), absl::OkStatus());
    }
    ASSERT_EQ((*file)->Finish(), absl::OkStatus());
    EXPECT_EQ((*file)->size(), size);
    EXPECT_EQ(ReadAll(path), text) << size;
  }
}

TEST(DirectFileTest, FullDiskComesWithALaterCallAndStays) {
  const checkpoint_testing::TempDirectory directory;
  checkpoint_testing::WriteHook full([](const std::string&, int64_t) { return ENOSPC; });
  auto file = DirectFile::Create(directory.path() + "/file", &full);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->Append(Bytes("abc")), absl::OkStatus());
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = (*file)->Finish();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory.path() + "/file"));
  }
}

TEST(DirectFileTest, FileThatIsDroppedWaitsForItsWrite) {
  const checkpoint_testing::TempDirectory directory;
  std::atomic<int> writes{0};
  checkpoint_testing::WriteHook counted([&writes](const std::string&, int64_t) {
    ++writes;
    return 0;
  });
  {
    auto file = DirectFile::Create(directory.path() + "/file", &counted);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->Append(Bytes(RandomText(kBuffer))), absl::OkStatus());
  }
  EXPECT_EQ(writes, 1);
}

TEST(DirectFileTest, DirectoryThatIsNotThereIsNamed) {
  const checkpoint_testing::TempDirectory directory;
  const std::string path = directory.path() + "/absent/file";
  const auto file = DirectFile::Create(path, nullptr);
  EXPECT_TRUE(absl::IsNotFound(file.status())) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(path));
}

}  // namespace
}  // namespace nibble
