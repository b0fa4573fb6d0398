#include "worker/checkpoint/store_file.h"

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

StoreFile Sample() {
  return {.identity = {"north cluster", "job \"7\""}, .attempt = 12, .pinned = {0, 40, 100}};
}

TEST(StoreFileTest, ComesBackAsItWas) {
  const absl::StatusOr<StoreFile> decoded = DecodeStoreFile(EncodeStoreFile(Sample()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, Sample());
  const StoreFile bare = {.identity = {"", "j"}};
  EXPECT_EQ(*DecodeStoreFile(EncodeStoreFile(bare)), bare);
}

TEST(StoreFileTest, EveryFlippedBitAndEveryTruncationIsFound) {
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
