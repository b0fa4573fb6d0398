// What is read from a SentencePiece model.
#include <random>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece_model.h"

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

TEST(SentencePieceModel, LinesAreApartExactlyIfNoTokenSpansALineFeed) {
  const std::string spec = Field(2, kByteFallback);
  EXPECT_TRUE(LinesApart(Piece("a") + spec + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("a") + Field(2, kBpe + kByteFallback) + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("a\n") + spec + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\n") + Field(2, "") + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\n", 4) + Field(2, "") + kIdentity));
  EXPECT_TRUE(LinesApart(Piece("\nb", 3) + spec + kIdentity));  // a control piece: never in a text

  EXPECT_FALSE(LinesApart(Piece("a") + Field(2, "") + kIdentity));      // a line feed is unknown
  EXPECT_FALSE(LinesApart(Piece("\n", 5) + Field(2, "") + kIdentity));  // unused: also unknown
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

TEST(SentencePieceModel, LaterFieldsOverrideEarlierOnesAsInProtobuf) {
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
  EXPECT_EQ(facts->model, PieceModel::kUnigram);
}

TEST(SentencePieceModel, MissingAndMalformedFieldsAreNamed) {
  const std::string spec = Field(2, kByteFallback);
  const struct {
    std::string model;
    const char* message;
  } kCases[] = {
      {"", "pieces is missing"},
      {spec + kIdentity, "pieces is missing"},
      {Piece("a") + kIdentity, "trainer_spec is missing"},
      {Piece("a") + spec, "normalizer_spec is missing"},
      {Piece("a") + "\x12", "model: no valid field at byte"},  // without a length
      {Piece("a") + "\x12\x05" + "ab",
       "model: no valid field at byte"},  // fewer bytes than its length
      {Piece("a") + "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "model: no valid field"},
      {std::string("\x02\x00", 2), "model: no valid field at byte 0"},  // number 0
      {"\x0b", "model: no valid field at byte 0"},                      // a group
      {Field(1, "\x0a"), "pieces: no valid field at byte 0"},
      {Piece("a") + Field(2, "\x98"), "trainer_spec: no valid field"},
      {Piece("a") + Field(3, "\x25"), "normalizer_spec: no valid field"},
      {Piece("a", 7), "pieces: type is 7, not in [1, 6]"},
      {Piece("a") + Field(1, Field(1, "b") + std::string("\x15\x00\x00\xc0\x7f", 5)),
       "pieces: the score of piece 1 is nan"},
      {Field(1, Field(1, "b") + std::string("\x15\x00\x00\x80\xff", 5)),
       "pieces: the score of piece 0 is -inf"},
      {Piece("a") + Field(2, Number(3, 5)), "trainer_spec: model_type is 5, not in [1, 4]"},
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
  EXPECT_TRUE(bpe->lines_apart && unigram->lines_apart);
  EXPECT_EQ(bpe->model, PieceModel::kBpe);
  EXPECT_EQ(unigram->model, PieceModel::kUnigram);
}

TEST(SentencePieceModel, PiecesAreInTheOrderOfTheirTokens) {
  const auto facts = ReadSentencePieceModel(TestModel());
  ASSERT_TRUE(facts.ok()) << facts.status();
  ASSERT_EQ(facts->pieces.size(), 400u);
  EXPECT_EQ(facts->pieces[0].text, "<unk>");
  EXPECT_EQ(facts->pieces[0].type, PieceType::kUnknown);
  EXPECT_EQ(facts->pieces[2].text, "</s>");
  EXPECT_EQ(facts->pieces[2].type, PieceType::kControl);
  EXPECT_EQ(facts->pieces[3 + 0x41].text, "<0x41>");
  EXPECT_EQ(facts->pieces[3 + 0x41].type, PieceType::kByte);
  EXPECT_EQ(facts->pieces[399].type, PieceType::kNormal);
  EXPECT_LT(facts->pieces[399].score, facts->pieces[260].score);
  EXPECT_TRUE(facts->byte_fallback);
  EXPECT_TRUE(facts->space_before_text);
}

TEST(SentencePieceModel, ATruncatedModelIsRefused) {
  const std::string& model = TestModel();
  EXPECT_FALSE(ReadSentencePieceModel("").ok());
  EXPECT_FALSE(ReadSentencePieceModel(model.substr(0, 20)).ok());
  EXPECT_FALSE(ReadSentencePieceModel(model.substr(0, model.size() - 1)).ok());
}

TEST(SentencePieceModel, DamagedBytesAreReadOrRefused) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string model = TestModel();
    for (int n = 0; n < 8; ++n) model[random() % model.size()] = static_cast<char>(random());
    const auto facts = ReadSentencePieceModel(model);
    if (facts.ok()) {
      EXPECT_LE(facts->pieces.size(), model.size());
    }
  }
}

}  // namespace
}  // namespace nibble
