#include "worker/trainer/data/unicode.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gtest/gtest.h"

namespace nibble {
namespace {

constexpr size_t kNone = std::string_view::npos;

// The encoding by its definition, for any number below 2^21, valid or not.
std::string Utf8Of(uint32_t c) {
  const auto byte = [](uint32_t b) { return static_cast<char>(b); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xc0 | c >> 6), byte(0x80 | (c & 63))};
  if (c < 0x10000) {
    return {byte(0xe0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
  }
  return {byte(0xf0 | c >> 18), byte(0x80 | (c >> 12 & 63)), byte(0x80 | (c >> 6 & 63)),
          byte(0x80 | (c & 63))};
}

TEST(Utf8, ExactlyTheCharactersAreValid) {
  for (uint32_t c = 0; c < 0x200000; ++c) {
    const bool character = c < 0xd800 || (c > 0xdfff && c <= 0x10ffff);
    ASSERT_EQ(FindInvalidUtf8(Utf8Of(c)), character ? kNone : 0) << std::hex << c;
  }
}

TEST(Utf8, OverlongFormsAndLoneBytesAreInvalid) {
  for (const std::string_view bad :
       {"\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xf0\x8f\xbf\xbf", "\x80", "\xbf", "\xfe", "\xff",
        "\xf5\x80\x80\x80", "\xc3", "\xe2\x82", "\xf0\x9f\x98", "\xc3(", "\xe2(\x82", "\xe2\x82(",
        "\xf0\x9f\x98("}) {
    EXPECT_EQ(FindInvalidUtf8(bad), 0u);
  }
}

TEST(Utf8, TheFirstInvalidByteIsFoundAtEveryPosition) {
  for (size_t before = 0; before < 40; ++before) {
    for (size_t after = 0; after < 20; ++after) {
      const std::string valid = std::string(before, 'a') + "\xe2\x82\xac";
      EXPECT_EQ(FindInvalidUtf8(valid + std::string(after, 'b')), kNone);
      EXPECT_EQ(FindInvalidUtf8(valid + "\xff" + std::string(after, '\xfe')), before + 3);
    }
  }
  EXPECT_EQ(FindInvalidUtf8(""), kNone);
}

}  // namespace
}  // namespace nibble
