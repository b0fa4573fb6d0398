#include "worker/checkpoint/direct_file.h"

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
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

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
    // In pieces that fit nothing.
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
  const auto file = DirectFile::Create("/nonexistent/file", nullptr);
  EXPECT_TRUE(absl::IsNotFound(file.status())) << file.status();
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("/nonexistent/file"));
}

}  // namespace
}  // namespace nibble
