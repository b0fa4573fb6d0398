#include "worker/trainer/data/token_array.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr TokenType kTypes[] = {TokenType::kUint8,  TokenType::kInt8,  TokenType::kInt16,
                                TokenType::kUint16, TokenType::kInt32, TokenType::kUint32,
                                TokenType::kInt64};

// The low bytes of each value first.
std::vector<std::byte> Bytes(TokenType type, const std::vector<int64_t>& values,
                             size_t before = 0) {
  std::vector<std::byte> bytes(before);
  for (const int64_t value : values) {
    for (int b = 0; b < TokenTypeBytes(type); ++b) {
      bytes.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * b) & 0xff));
    }
  }
  return bytes;
}

TEST(TokenArray, EveryTypeAndAlignmentReadsItsValues) {
  for (const TokenType type : kTypes) {
    for (size_t shift = 0; shift < 9; ++shift) {
      std::vector<int64_t> values;
      for (int64_t i = 0; i < 50; ++i) values.push_back(i * 37 % 128);
      values.push_back(TokenTypeBytes(type) == 1 ? 127 : 0x7f01);
      const std::vector<std::byte> bytes = Bytes(type, values, shift);
      const TokenArray array(type, absl::MakeConstSpan(bytes).subspan(shift));
      ASSERT_EQ(array.size(), static_cast<int64_t>(values.size()));
      for (int64_t first = 0; first <= array.size(); first += 5) {
        std::vector<int32_t> out(array.size() - first + 1, -7);
        ASSERT_TRUE(array.Read("x", 0x8000, first, array.size() - first, out.data()).ok());
        for (int64_t i = first; i < array.size(); ++i) ASSERT_EQ(out[i - first], values[i]);
        ASSERT_EQ(out.back(), -7);
      }
    }
  }
}

TEST(TokenArray, TheFirstTokenOutsideTheVocabularyIsNamed) {
  const struct {
    TokenType type;
    int64_t value;
    const char* printed;
  } kCases[] = {
      {TokenType::kUint8, 100, "100"},
      {TokenType::kUint8, 255, "255"},
      {TokenType::kInt8, -1, "-1"},
      {TokenType::kInt16, -32768, "-32768"},
      {TokenType::kUint16, 65535, "65535"},
      {TokenType::kInt32, INT32_MIN, "-2147483648"},
      {TokenType::kUint32, 4294967295, "4294967295"},
      {TokenType::kUint32, 2147483648, "2147483648"},
      {TokenType::kInt64, INT64_MIN, "-9223372036854775808"},
      {TokenType::kInt64, int64_t{1} << 32, "4294967296"},
  };
  for (const auto& one : kCases) {
    const std::vector<std::byte> bytes = Bytes(one.type, {1, 99, one.value, 0, one.value});
    const TokenArray array(one.type, bytes);
    int32_t out[5];
    EXPECT_TRUE(array.Read("file.bin", 100, 0, 2, out).ok());
    EXPECT_TRUE(array.Read("file.bin", 100, 3, 1, out).ok());
    const absl::Status status = array.Read("file.bin", 100, 1, 4, out);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("file.bin"), HasSubstr(std::string("token ") + one.printed + " at"),
                      HasSubstr("position 2"), HasSubstr("[0, 100)")));
  }
}

TEST(TokenArray, TheLargestVocabularyTakesEveryInt32) {
  const std::vector<std::byte> bytes = Bytes(TokenType::kUint32, {INT32_MAX, 0});
  int32_t out[2];
  EXPECT_TRUE(TokenArray(TokenType::kUint32, bytes).Read("x", int64_t{1} << 31, 0, 2, out).ok());
  EXPECT_EQ(out[0], INT32_MAX);
}

TEST(TokenArray, RangesOutsideAreRefused) {
  const std::vector<std::byte> bytes = Bytes(TokenType::kUint16, {1, 2, 3});
  const TokenArray array(TokenType::kUint16, bytes);
  int32_t out[4];
  const struct {
    int64_t first, count;
  } kRanges[] = {{-1, 1}, {0, -1},        {0, 4},         {3, 1},
                 {4, 0},  {INT64_MAX, 1}, {1, INT64_MAX}, {INT64_MIN, 1}};
  for (const auto& range : kRanges) {
    EXPECT_EQ(array.Read("x", 10, range.first, range.count, out).code(),
              absl::StatusCode::kOutOfRange)
        << range.first << " " << range.count;
  }
  EXPECT_TRUE(array.Read("x", 10, 3, 0, out).ok());
  EXPECT_TRUE(TokenArray().Read("x", 10, 0, 0, out).ok());
}

}  // namespace
}  // namespace nibble
