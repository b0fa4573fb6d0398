#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/foreign_tokens.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr TokenType kTokenTypes[] = {TokenType::kUint8,  TokenType::kInt8,  TokenType::kInt16,
                                     TokenType::kUint16, TokenType::kInt32, TokenType::kUint32,
                                     TokenType::kInt64};

// The values, little-endian.
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
  for (const TokenType type : kTokenTypes) {
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

using ::testing::ElementsAre;

const TokenHints kGpt2{.tokenizer = "gpt2", .vocabulary = 50257};

TokenHints Headerless(int width) {
  TokenHints hints = kGpt2;
  hints.token_width = width;
  return hints;
}

std::string Packed(const std::vector<int32_t>& tokens, int width) {
  std::string bytes;
  for (const int32_t token : tokens) {
    bytes.append(reinterpret_cast<const char*>(&token), static_cast<size_t>(width));
  }
  return bytes;
}

// From docs/formats/token-files.md, not from the code under test.
std::string WithHeader(const std::vector<int32_t>& tokens, int32_t magic = 20240520,
                       int32_t version = 1, int width = 2) {
  int32_t header[256] = {magic, version, static_cast<int32_t>(tokens.size())};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header)) + Packed(tokens, width);
}

// Reads `bytes` as a file; they must outlive the reader.
absl::StatusOr<std::unique_ptr<RawTokens>> Open(const std::string& bytes, const TokenHints& hints) {
  return RawTokens::Open(
      "some.bin",
      MappedFile::Borrow({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}), hints);
}

std::string ErrorOf(const std::string& bytes, const TokenHints& hints) {
  const auto opened = Open(bytes, hints);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("some.bin"));
  return std::string(opened.status().message());
}

std::vector<int32_t> RandomTokens(uint32_t seed, int count) {
  return Concatenated(RandomDocuments(seed, count, 1, 50257));
}

TEST(RawTokens, BothHeadersReadWhatWasWritten) {
  const std::vector<int32_t> tokens = RandomTokens(1, 1000);
  const struct {
    std::string bytes;
    int width;
  } kFiles[] = {{WithHeader(tokens), 2}, {WithHeader(tokens, 20240801, 7, 4), 4}};
  for (const auto& file : kFiles) {
    const auto opened = Open(file.bytes, kGpt2);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ((*opened)->token_width(), file.width);
    EXPECT_EQ((*opened)->tokenizer(), "gpt2");
    EXPECT_EQ((*opened)->vocabulary(), 50257);
    EXPECT_EQ((*opened)->documents(), 1);
    EXPECT_EQ((*opened)->DocumentBegin(1), 1000);
    EXPECT_EQ((*opened)->end_of_document(), std::nullopt);
    EXPECT_EQ(ReadAll(**opened), tokens);
    EXPECT_TRUE((*opened)->Verify().ok());
  }
}

TEST(RawTokens, FilesWithoutAHeaderAreReadAtTheGivenWidth) {
  const std::vector<int32_t> tokens = RandomTokens(2, 777);
  for (const int width : {2, 4}) {
    const std::string bytes = Packed(tokens, width);
    const auto opened = Open(bytes, Headerless(width));
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(ReadAll(**opened), tokens);
    EXPECT_THAT(ErrorOf(bytes, kGpt2), HasSubstr("token_width"));
  }
}

TEST(RawTokens, AWidthForAFileWithAHeaderIsRefused) {
  EXPECT_THAT(ErrorOf(WithHeader({1, 2}), Headerless(2)),
              AllOf(HasSubstr("token_width is 2"), HasSubstr("20240520")));
}

TEST(RawTokens, EveryRuleOfTheHeaderIsCheckedAndNamed) {
  const std::string good = WithHeader({1, 2, 3});
  ASSERT_TRUE(Open(good, kGpt2).ok());
  const auto put = [](std::string& f, size_t index, int32_t value) {
    std::memcpy(f.data() + 4 * index, &value, 4);
  };
  const struct {
    const char* message;
    std::function<void(std::string&)> forge;
  } kCases[] = {
      {"version is 2, not 1", [&](std::string& f) { put(f, 1, 2); }},
      {"version is 7, not 1", [&](std::string& f) { put(f, 1, 7); }},
      {"version is 1, not 7", [&](std::string& f) { put(f, 0, 20240801); }},
      {"token count is 4", [&](std::string& f) { put(f, 2, 4); }},
      {"token count is 2", [&](std::string& f) { put(f, 2, 2); }},
      {"token count is -1", [&](std::string& f) { put(f, 2, -1); }},
      {"token count is -511", [&](std::string& f) { put(f, 2, -511); }},
      {"header[3] is 9", [&](std::string& f) { put(f, 3, 9); }},
      {"header[255] is -1", [&](std::string& f) { put(f, 255, -1); }},
      {"token count is 3", [&](std::string& f) { f += '\0'; }},
      {"token count is 3", [&](std::string& f) { f.pop_back(); }},
  };
  for (const auto& one : kCases) {
    std::string forged = good;
    one.forge(forged);
    EXPECT_THAT(ErrorOf(forged, kGpt2), HasSubstr(one.message));
  }
  for (size_t size = 0; size < good.size(); ++size) {
    ASSERT_FALSE(Open(good.substr(0, size), kGpt2).ok()) << size;
  }
}

TEST(RawTokens, SizesThatAreNoMultipleOfTheWidthAreRefused) {
  EXPECT_THAT(ErrorOf("abc", Headerless(2)), HasSubstr("3 bytes, not a multiple of token_width 2"));
  EXPECT_THAT(ErrorOf("abcdef", Headerless(4)), HasSubstr("6 bytes"));
}

TEST(RawTokens, TokensOutsideTheVocabularyAreRefusedByPosition) {
  const std::string bytes = Packed({1, 2, 50257, 3}, 2);
  const auto opened = Open(bytes, Headerless(2));
  ASSERT_TRUE(opened.ok());
  int32_t out[4];
  EXPECT_TRUE((*opened)->Read(0, 2, out).ok());
  const absl::Status status = (*opened)->Read(0, 4, out);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("some.bin"), HasSubstr("token 50257 at position 2")));
  EXPECT_EQ((*opened)->Verify(), status);
}

// Where each document begins, by a naive search for the marks.
std::vector<int64_t> Begins(const std::vector<int32_t>& tokens, const DocumentMark& mark) {
  std::vector<int64_t> begins;
  for (int64_t i = 0; i < static_cast<int64_t>(tokens.size()); ++i) {
    const bool begin = mark.place == DocumentMark::Place::kBegins
                           ? tokens[i] == mark.token
                           : i > 0 && tokens[i - 1] == mark.token;
    if (i == 0 || begin) begins.push_back(i);
  }
  return begins;
}

TEST(RawTokens, MarksCutDocumentsAtTheirEndsOrBeginnings) {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<int32_t> tokens(random() % 40);
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 4);
    for (const auto place : {DocumentMark::Place::kEnds, DocumentMark::Place::kBegins}) {
      TokenHints hints = Headerless(2);
      hints.document_mark = DocumentMark{.token = 3, .place = place};
      const std::string bytes = Packed(tokens, 2);
      const auto opened = Open(bytes, hints);
      ASSERT_TRUE(opened.ok()) << opened.status();
      const std::vector<int64_t> begins = Begins(tokens, *hints.document_mark);
      ASSERT_EQ((*opened)->documents(), static_cast<int64_t>(begins.size()));
      for (size_t d = 0; d < begins.size(); ++d) {
        ASSERT_EQ((*opened)->DocumentBegin(static_cast<int64_t>(d)), begins[d]);
      }
      ASSERT_EQ((*opened)->DocumentBegin((*opened)->documents()), (*opened)->tokens());
      EXPECT_EQ((*opened)->end_of_document(),
                place == DocumentMark::Place::kEnds ? std::optional<int32_t>(3) : std::nullopt);
    }
  }
}

TEST(RawTokens, MarksAreFoundAcrossTheBlocksOfALongFile) {
  std::vector<int32_t> tokens(200'000, 1);
  for (const size_t at : {0, 65'535, 65'536, 131'071, 199'999}) tokens[at] = 7;
  const std::string bytes = Packed(tokens, 4);
  TokenHints hints = Headerless(4);
  hints.document_mark = DocumentMark{.token = 7};
  const auto opened = Open(bytes, hints);
  ASSERT_TRUE(opened.ok());
  std::vector<int64_t> ends;
  for (int64_t d = 1; d <= (*opened)->documents(); ++d) {
    ends.push_back((*opened)->DocumentBegin(d));
  }
  EXPECT_THAT(ends, ElementsAre(1, 65'536, 65'537, 131'072, 200'000));
}

TEST(RawTokens, WithAMarkATokenOutsideTheVocabularyIsFoundAtOpen) {
  TokenHints hints = Headerless(2);
  hints.document_mark = DocumentMark{.token = 7};
  EXPECT_THAT(ErrorOf(Packed({1, 60'000}, 2), hints), HasSubstr("token 60000 at position 1"));
}

TEST(RawTokens, EmptyFilesHaveNoDocument) {
  for (const auto& [bytes, hints] : std::vector<std::pair<std::string, TokenHints>>{
           {"", Headerless(2)}, {WithHeader({}), kGpt2}}) {
    const auto opened = Open(bytes, hints);
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ((*opened)->tokens(), 0);
    EXPECT_EQ((*opened)->documents(), 0);
    EXPECT_TRUE((*opened)->Verify().ok());
  }
}

TEST(RawTokens, PropertiesThatTheFileDoesNotRecordAreRequired) {
  EXPECT_THAT(ErrorOf(WithHeader({1}), {.vocabulary = 5}), HasSubstr("tokenizer"));
  EXPECT_THAT(ErrorOf(WithHeader({1}), {.tokenizer = "gpt2"}), HasSubstr("vocabulary"));
}

}  // namespace
}  // namespace nibble
