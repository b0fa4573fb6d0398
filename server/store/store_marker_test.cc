#include "server/store/store_marker.h"

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(StoreMarkerTest, AMarkerNamesItsCluster) {
  for (const std::string& name :
       {std::string("a"), std::string(" \"two words\" "), std::string(128, 'x')}) {
    EXPECT_EQ(ParseStoreMarker(EncodeStoreMarker(name), "STORE").value(), name);
  }
}

TEST(StoreMarkerTest, EveryChangedBitIsRefusedNamingTheFile) {
  const std::string marker = EncodeStoreMarker("alpha");
  for (size_t bit = 0; bit < marker.size() * 8; ++bit) {
    std::string damaged = marker;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    const absl::Status status = ParseStoreMarker(damaged, "/store/STORE").status();
    EXPECT_FALSE(status.ok()) << bit;
    EXPECT_THAT(std::string(status.message()), HasSubstr("/store/STORE")) << bit;
  }
  for (size_t size = 0; size < marker.size(); ++size) {
    EXPECT_FALSE(ParseStoreMarker(marker.substr(0, size), "STORE").ok()) << size;
  }
}

TEST(StoreMarkerTest, ANewerVersionIsRefusedNamingBothWhateverFollows) {
  const absl::Status status =
      ParseStoreMarker("nibble coordinator store\nversion 2\nsomething else", "STORE").status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("version 2, this program knows up to 1"));
}

}  // namespace
}  // namespace nibble
