#include "worker/trainer/data/byte_tokenizer.h"

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

std::vector<int32_t> Encoded(const std::string& text) {
  std::vector<int32_t> tokens;
  const absl::Status status = ByteTokenizer().Encode(text, [&](absl::Span<const int32_t> piece) {
    tokens.insert(tokens.end(), piece.begin(), piece.end());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

TEST(ByteTokenizer, EveryByteIsItsOwnTokenAndDecodesToItself) {
  std::string text;
  for (int b = 0; b < 256; ++b) text += static_cast<char>(b);
  const std::vector<int32_t> tokens = Encoded(text);
  ASSERT_EQ(tokens.size(), 256u);
  for (int b = 0; b < 256; ++b) EXPECT_EQ(tokens[b], b);
  EXPECT_EQ(*ByteTokenizer().Decode(tokens), text);
}

TEST(ByteTokenizer, TextsLongerThanAPieceComeWholeAndInOrder) {
  for (const size_t size : {0, 1, 4095, 4096, 4097, 10'000}) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>(i * 31 + i / 4096);
    EXPECT_EQ(*ByteTokenizer().Decode(Encoded(text)), text) << size;
  }
}

TEST(ByteTokenizer, EndOfDocumentIsNoText) {
  EXPECT_EQ(*ByteTokenizer().Decode({'a', ByteTokenizer::kEndOfDocument, 'b'}), "ab");
}

TEST(ByteTokenizer, TokensOutsideTheVocabularyAreRefusedByPosition) {
  for (const int32_t token : {-1, 257, INT32_MAX, INT32_MIN}) {
    const auto text = ByteTokenizer().Decode({'a', token});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(text.status().message()),
                AllOf(HasSubstr(std::to_string(token)), HasSubstr("position 1")));
  }
}

TEST(ByteTokenizer, TheSinksErrorStopsTheEncoding) {
  int calls = 0;
  const absl::Status status =
      ByteTokenizer().Encode(std::string(100'000, 'x'), [&](absl::Span<const int32_t>) {
        ++calls;
        return absl::ResourceExhaustedError("full");
      });
  EXPECT_EQ(status, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace nibble
