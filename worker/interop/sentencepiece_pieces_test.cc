#include "worker/interop/sentencepiece_pieces.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "worker/trainer/data/sentencepiece_testing.h"

namespace nibble {
namespace {

TEST(ReadSentencePieces, TellsBpeFromUnigram) {
  EXPECT_EQ(ReadSentencePieces(TestModel())->model, PieceModel::kBpe);
  EXPECT_EQ(ReadSentencePieces(TestModel(SentencePieceType::kUnigram))->model,
            PieceModel::kUnigram);
}

TEST(ReadSentencePieces, PiecesComeInTheOrderOfTheirTokens) {
  const auto pieces = ReadSentencePieces(TestModel());
  ASSERT_TRUE(pieces.ok()) << pieces.status();
  ASSERT_EQ(pieces->pieces.size(), 400u);
  EXPECT_EQ(pieces->pieces[0].text, "<unk>");
  EXPECT_EQ(pieces->pieces[0].type, PieceType::kUnknown);
  EXPECT_EQ(pieces->pieces[2].text, "</s>");
  EXPECT_EQ(pieces->pieces[2].type, PieceType::kControl);
  EXPECT_EQ(pieces->pieces[3 + 0x41].text, "<0x41>");
  EXPECT_EQ(pieces->pieces[3 + 0x41].type, PieceType::kByte);
  EXPECT_EQ(pieces->pieces[399].type, PieceType::kNormal);
  EXPECT_LT(pieces->pieces[399].score, pieces->pieces[260].score);
  EXPECT_TRUE(pieces->byte_fallback);
  EXPECT_TRUE(pieces->space_before_text);
}

TEST(ReadSentencePieces, WhatIsCutShortIsRefused) {
  const std::string& model = TestModel();
  EXPECT_FALSE(ReadSentencePieces("").ok());
  EXPECT_FALSE(ReadSentencePieces(model.substr(0, 20)).ok());
  EXPECT_FALSE(ReadSentencePieces(model.substr(0, model.size() - 1)).ok());
}

TEST(ReadSentencePieces, DamagedBytesAreReadOrRefused) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 3000; ++i) {
    std::string model = TestModel();
    for (int n = 0; n < 8; ++n) model[random() % model.size()] = static_cast<char>(random());
    const auto pieces = ReadSentencePieces(model);
    if (pieces.ok()) {
      EXPECT_LE(pieces->pieces.size(), model.size());
    }
  }
}

}  // namespace
}  // namespace nibble
