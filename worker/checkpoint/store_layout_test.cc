#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/files/files_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/store_layout.h"
#include "worker/checkpoint/store_testing.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;

TEST(StoreLayoutTest, ParsingReturnsTheNamedDirectory) {
  for (const Stage stage : {Stage::kWriting, Stage::kCommitted, Stage::kDeleted}) {
    for (const int64_t number : {int64_t{0}, int64_t{7}, int64_t{1} << 60}) {
      const StoredDirectory directory = {stage, number, number / 2, number / 3};
      EXPECT_EQ(ParseDirectoryName(DirectoryName(directory)), directory);
    }
  }
  EXPECT_EQ(DirectoryName({Stage::kCommitted, 40, 2, 7}),
            "step-000000000040-attempt-0002-00000007");
  EXPECT_EQ(ParseShardDirectoryName(ShardDirectoryName(123456)), 123456);
}

TEST(StoreLayoutTest, OtherNamesAreNotParsed) {
  for (const char* name :
       {"", "step-", "step-40-attempt-2-7", "step-000000000040-attempt-0002-00000007x",
        "step-000000000040-attempt-0002-", "Step-000000000040-attempt-0002-00000007",
        "step-00000000004a-attempt-0002-00000007",
        "step-99999999999999999999-attempt-0002-00000007", "lost+found",
        // The next number would overflow.
        "step-000000000040-attempt-0002-9223372036854775807",
        "step-000000000040-attempt-9223372036854775807-00000007"}) {
    EXPECT_EQ(ParseDirectoryName(name), std::nullopt) << name;
  }
  for (const char* name : {"shard-", "shard-1", "shard-00001-chunks-0", "shard-9999999999"}) {
    EXPECT_EQ(ParseShardDirectoryName(name), std::nullopt) << name;
  }
}

TEST(StoreLayoutTest, AScanIsOrderedBySerialAndIgnoresOtherNames) {
  const file_testing::TempDirectory directory;
  const StoredDirectory first = {Stage::kCommitted, 50, 1, 1};
  const StoredDirectory second = {Stage::kDeleted, 30, 1, 2};
  const StoredDirectory third = {Stage::kWriting, 40, 2, 3};
  for (const StoredDirectory& d : {third, first, second}) {
    std::filesystem::create_directory(directory.path() + "/" + DirectoryName(d));
  }
  std::filesystem::create_directory(directory.path() + "/lost+found");
  std::ofstream(directory.path() + "/STORE") << "x";
  EXPECT_THAT(*ScanStore(directory.path()), ElementsAre(first, second, third));
  EXPECT_FALSE(ScanStore(directory.path() + "/none").ok());
}

StoreFile Sample() {
  return {.identity = {"north cluster", "job \"7\""}, .attempt = 12, .pinned = {0, 40, 100}};
}

TEST(StoreFileTest, DecodingReturnsTheEncodedValue) {
  const absl::StatusOr<StoreFile> decoded = DecodeStoreFile(EncodeStoreFile(Sample()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Sample());
  const StoreFile bare = {.identity = {"", "j"}};
  EXPECT_EQ(*DecodeStoreFile(EncodeStoreFile(bare)), bare);
}

TEST(StoreFileTest, EveryFlippedBitAndEveryTruncationIsDetected) {
  const std::string bytes = EncodeStoreFile(Sample());
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_TRUE(absl::IsDataLoss(DecodeStoreFile(damaged).status())) << "bit " << bit;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_TRUE(absl::IsDataLoss(DecodeStoreFile(bytes.substr(0, size)).status())) << size;
  }
  EXPECT_TRUE(absl::IsDataLoss(DecodeStoreFile(bytes + "\n").status()));
}

}  // namespace
}  // namespace nibble
