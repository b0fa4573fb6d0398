#include "worker/trainer/data/sentencepiece_model.h"

#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/sentencepiece_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

// A length-delimited field of a number below 16.
std::string Field(int number, const std::string& bytes) {
  return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(bytes.size()) +
         bytes;
}
std::string Number(int number, int value) {
  return {static_cast<char>(number << 3), static_cast<char>(value)};
}
std::string Piece(const std::string& text, int type = 1) {
  return Field(1, Field(1, text) + Number(3, type));
}
const std::string kByteFallback = "\x98\x02\x01";  // field 35
const std::string kBpe = Number(3, 2);
const std::string kIdentity = Field(3, Number(4, 0));  // no removal of spaces

bool LinesApart(const std::string& model) {
  const auto facts = ReadSentencePieceModel(model);
  EXPECT_TRUE(facts.ok()) << facts.status();
  return facts->lines_apart;
}

TEST(SentencePieceModel, TheLabelIsTheHashOfTheBytes) {
  // The published test vectors of 64-bit FNV-1a.
  EXPECT_EQ(SentencePieceLabel(""), "sp:cbf29ce484222325");
  EXPECT_EQ(SentencePieceLabel("a"), "sp:af63dc4c8601ec8c");
  EXPECT_EQ(SentencePieceLabel("foobar"), "sp:85944171f73967e8");
}


TEST(SentencePieceModel, LinesAreApartExactlyWhereNothingReachesAcross) {
  const std::string spec = Field(2, kByteFallback);
  EXPECT_TRUE(LinesApart(Piece("a") + spec + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("a") + Field(2, kBpe + kByteFallback) + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("a\n") + spec + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\n") + Field(2, "") + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\n", 4) + Field(2, "") + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\nb", 3) + spec + kIdentity));  // control: never in a text

  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, "") + kIdentity));      // a feed is unknown
  EXPECT_FALSE(LinesApart(Piece("\n", 5) + Field(2, "") + kIdentity));  // and so here
  EXPECT_FALSE(LinesApart(Piece("a\nb") + spec + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("\n\n") + spec + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("\nb", 4) + spec + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("\nb", 5) + spec + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("a") + spec + Field(3, "")));  // removes spaces by default
  EXPECT_FALSE(LinesApart(Piece("a") + spec + Field(3, Number(4, 0) + Field(2, "map"))));
  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, kByteFallback + "\xc0\x01\x01") + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, Number(3, 3) + kByteFallback) + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, Number(3, 4) + kByteFallback) + kIdentity));
  EXPECT_FALSE(
      LinesApart(Piece("a") + Piece("ab", 5) + Field(2, kBpe + kByteFallback) + kIdentity));
}

TEST(SentencePieceModel, LaterFieldsOverruleEarlierOnesAsInProtobuf) {
  const std::string spec = Field(2, kByteFallback);
  EXPECT_TRUE(LinesApart(Piece("a") + spec + Field(3, "") + kIdentity));
  EXPECT_FALSE(LinesApart(Piece("a") + spec + kIdentity + Field(3, Number(4, 1))));
}

TEST(SentencePieceModel, ContinuedIsTheModelWithoutSelfTestAndDummyPrefix) {
  const std::string spec = Field(2, kByteFallback);
  const auto facts =
      ReadSentencePieceModel(Piece("a") + spec + Field(4, "test") + kIdentity + Field(4, "again"));
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->continued, Piece("a") + spec + kIdentity + Field(3, Number(3, 0)));
  EXPECT_FALSE(facts->by_rank);
}

TEST(SentencePieceModel, WhatIsMissingOrBrokenIsNamed) {
  const std::string spec = Field(2, kByteFallback);
  const struct {
    std::string model;
    const char* message;
  } kCases[] = {
      {"", "pieces is missing"},
      {spec + kIdentity, "pieces is missing"},
      {Piece("a") + kIdentity, "trainer_spec is missing"},
      {Piece("a") + spec, "normalizer_spec is missing"},
      {Piece("a") + "\x12", "model: no field at byte"},             // a length is missing
      {Piece("a") + "\x12\x05" + "ab", "model: no field at byte"},  // fewer bytes than it says
      {Piece("a") + "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "model: no field"},
      {std::string("\x02\x00", 2), "model: no field at byte 0"},  // number 0
      {"\x0b", "model: no field at byte 0"},                      // a group
      {Field(1, "\x0a"), "pieces: no field at byte 0"},
      {Piece("a") + Field(2, "\x98"), "trainer_spec: no field"},
      {Piece("a") + Field(3, "\x25"), "normalizer_spec: no field"},
  };
  for (const auto& one : kCases) {
    const absl::Status status = ReadSentencePieceModel(one.model).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << one.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.message));
  }
}

TEST(SentencePieceModel, TrainedModelsAreRead) {
  const auto bpe = ReadSentencePieceModel(TestModel(SentencePieceType::kBpe));
  const auto unigram = ReadSentencePieceModel(TestModel(SentencePieceType::kUnigram));
  ASSERT_TRUE(bpe.ok() && unigram.ok());
  EXPECT_TRUE(bpe->lines_apart && bpe->by_rank);
  EXPECT_TRUE(unigram->lines_apart && !unigram->by_rank);
}

}  // namespace
}  // namespace nibble
