#include "common/crc32c.h"

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "common/bytes.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

std::string Counting(int first, int step) {
  std::string text;
  for (int i = 0; i < 32; ++i) text += static_cast<char>(first + i * step);
  return text;
}

struct KnownAnswer {
  std::string text;
  uint32_t crc;
};

// RFC 3720, appendix B.4, and the check value that catalogues of CRCs give.
std::vector<KnownAnswer> KnownAnswers() {
  return {
      {"", 0},
      {"123456789", 0xe3069283},
      {std::string(32, '\0'), 0x8a9136aa},
      {std::string(32, '\xff'), 0x62a8ab43},
      {Counting(0, 1), 0x46dd794e},
      {Counting(31, -1), 0x113fdb5c},
      {std::string("\x01\xc0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\0\0\x04\0\0\0\0\x14\0\0\0\x18"
                   "\x28\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",
                   48),
       0xd9963a56},
  };
}

TEST(Crc32c, GivesTheKnownAnswers) {
  for (const KnownAnswer& known : KnownAnswers()) {
    EXPECT_EQ(Crc32c(AsBytes(known.text)), known.crc) << known.text.size() << " bytes";
    EXPECT_EQ(crc32c_internal::ExtendByTable(0, AsBytes(known.text)), known.crc);
  }
}

TEST(Crc32c, TableAndInstructionAgreeAtEveryLengthAndAlignment) {
  if (!crc32c_internal::HasInstruction()) GTEST_SKIP() << "no SSE4.2 here";
  std::mt19937 random(1);
  std::string text(300, '\0');
  for (char& c : text) c = static_cast<char>(random());
  for (size_t begin = 0; begin < 9; ++begin) {
    for (size_t length = 0; length + begin <= text.size(); ++length) {
      const auto bytes = AsBytes(text).subspan(begin, length);
      const uint32_t crc = random();
      ASSERT_EQ(crc32c_internal::ExtendByTable(crc, bytes),
                crc32c_internal::ExtendByInstruction(crc, bytes))
          << begin << " " << length;
    }
  }
}

TEST(Crc32c, ExtendingByPartsEqualsTheWholeWhereverItIsCut) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * i);
  const uint32_t whole = Crc32c(AsBytes(text));
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const auto bytes = AsBytes(text);
    EXPECT_EQ(ExtendCrc32c(Crc32c(bytes.subspan(0, cut)), bytes.subspan(cut)), whole) << cut;
  }
}

TEST(Crc32c, EverySingleBitChangesIt) {
  std::string text = Counting(7, 5);
  const uint32_t right = Crc32c(AsBytes(text));
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_NE(Crc32c(AsBytes(text)), right) << bit;
    text[bit / 8] ^= static_cast<char>(1 << (bit % 8));
  }
}

}  // namespace
}  // namespace nibble
