#include <atomic>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <memory>
#include <random>
#include <string>

#include "absl/status/status.h"
#include "common/bytes.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/direct_file.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBuffer = DirectFile::kBufferBytes;

std::string RandomText(int64_t size) {
  std::mt19937_64 random(size);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random());
  return text;
}

TEST(DirectFileTest, TheFileContainsExactlyTheAppendedBytes) {
  const file_testing::TempDirectory directory;
  const std::string path = directory.path() + "/file";
  for (const int64_t size : {int64_t{0}, int64_t{1}, int64_t{4096}, kBuffer - 1, kBuffer,
                             kBuffer + 1, 3 * kBuffer + 4097}) {
    const std::string text = RandomText(size);
    auto file = DirectFile::Create(path, nullptr);
    ASSERT_TRUE(file.ok()) << file.status();
    // In pieces of odd sizes.
    for (int64_t at = 0; at < size; at += 777'777) {
      ASSERT_EQ((*file)->Append(AsBytes(text.substr(at, 777'777))), absl::OkStatus());
    }
    ASSERT_EQ((*file)->Finish(), absl::OkStatus());
    EXPECT_EQ((*file)->size(), size);
    EXPECT_EQ(file_testing::ContentOf(path), text) << size;
  }
}

TEST(DirectFileTest, AFullDiskIsReportedByALaterCallAndByAllAfterIt) {
  const file_testing::TempDirectory directory;
  file_testing::WriteHook full([](const std::string&, int64_t) { return ENOSPC; });
  auto file = DirectFile::Create(directory.path() + "/file", &full);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->Append(AsBytes(std::string("abc"))), absl::OkStatus());
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = (*file)->Finish();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory.path() + "/file"));
  }
}

TEST(DirectFileTest, DestroyingAnUnfinishedFileWaitsForItsWrite) {
  const file_testing::TempDirectory directory;
  std::atomic<int> writes{0};
  file_testing::WriteHook counted([&writes](const std::string&, int64_t) {
    ++writes;
    return 0;
  });
  {
    auto file = DirectFile::Create(directory.path() + "/file", &counted);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_EQ((*file)->Append(AsBytes(RandomText(kBuffer))), absl::OkStatus());
  }
  EXPECT_EQ(writes, 1);
}

TEST(DirectFileTest, AMissingDirectoryIsNamed) {
  const file_testing::TempDirectory directory;
  const std::string path = directory.path() + "/absent/file";
  const auto file = DirectFile::Create(path, nullptr);
  EXPECT_TRUE(absl::IsNotFound(file.status())) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(path));
}

}  // namespace
}  // namespace nibble
