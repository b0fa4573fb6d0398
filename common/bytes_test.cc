#include "common/bytes.h"

#include <cstdint>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace nibble {
namespace {

TEST(LittleEndianTest, NumbersAreStoredLowestByteFirst) {
  std::string bytes;
  AppendLittle(bytes, uint32_t{0x01020304});
  AppendLittle(bytes, int64_t{-2});
  AppendLittle(bytes, uint8_t{0xff});
  EXPECT_EQ(bytes, std::string("\x04\x03\x02\x01\xfe\xff\xff\xff\xff\xff\xff\xff\xff", 13));
  EXPECT_EQ(LoadLittle<uint32_t>(bytes.data()), 0x01020304u);
  EXPECT_EQ(LoadLittle<int64_t>(bytes.data() + 4), -2);
  EXPECT_EQ(LoadLittle<uint8_t>(bytes.data() + 12), 0xff);
}

TEST(LittleEndianTest, StoredNumbersAreLoadedUnchanged) {
  for (const int64_t number : {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0},
                               std::numeric_limits<int64_t>::max()}) {
    char bytes[sizeof number];
    StoreLittle(bytes, number);
    EXPECT_EQ(LoadLittle<int64_t>(bytes), number);
  }
}

TEST(Fnv1aTest, ThePublishedVectorsAreReproduced) {
  EXPECT_EQ(Fnv1a64(""), 0xcbf29ce484222325u);
  EXPECT_EQ(Fnv1a64("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(Fnv1a64("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(Fnv1a32(""), 0x811c9dc5u);
  EXPECT_EQ(Fnv1a32("a"), 0xe40c292cu);
  EXPECT_EQ(Fnv1a32("foobar"), 0xbf9cf968u);
}

}  // namespace
}  // namespace nibble
