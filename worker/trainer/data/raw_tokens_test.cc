#include "worker/trainer/data/raw_tokens.h"

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

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

// As the header's description in docs/formats/token-files.md says.
std::string WithHeader(const std::vector<int32_t>& tokens, int32_t magic = 20240520,
                       int32_t version = 1, int width = 2) {
  int32_t header[256] = {magic, version, static_cast<int32_t>(tokens.size())};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header)) + Packed(tokens, width);
}

// The reader of a file's bytes, which `bytes` keeps.
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

TEST(RawTokens, FilesOfNothingButTokensReadAtTheWidthTheyAreGiven) {
  const std::vector<int32_t> tokens = RandomTokens(2, 777);
  for (const int width : {2, 4}) {
    const std::string bytes = Packed(tokens, width);
    const auto opened = Open(bytes, Headerless(width));
    ASSERT_TRUE(opened.ok()) << opened.status();
    EXPECT_EQ(ReadAll(**opened), tokens);
    EXPECT_THAT(ErrorOf(bytes, kGpt2), HasSubstr("token_width"));
  }
}

TEST(RawTokens, AHeaderAndAWidthContradictEachOther) {
  EXPECT_THAT(ErrorOf(WithHeader({1, 2}), Headerless(2)),
              AllOf(HasSubstr("token_width: 2"), HasSubstr("20240520")));
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

// Where each document begins, as a naive reading of the marks has it.
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

TEST(RawTokens, WhatTheFileDoesNotSayMustBeSaid) {
  EXPECT_THAT(ErrorOf(WithHeader({1}), {.vocabulary = 5}), HasSubstr("tokenizer"));
  EXPECT_THAT(ErrorOf(WithHeader({1}), {.tokenizer = "gpt2"}), HasSubstr("vocabulary"));
}

}  // namespace
}  // namespace nibble
