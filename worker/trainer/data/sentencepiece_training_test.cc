// Training SentencePiece models.
#include "worker/trainer/data/sentencepiece_training.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece_library.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SentencePieceTraining, EqualTextsGiveEqualModelsAndDifferentTextsDifferentOnes) {
  for (const SentencePieceType type : {SentencePieceType::kBpe, SentencePieceType::kUnigram}) {
    const SentencePieceTraining training{.vocabulary = 400, .type = type};
    EXPECT_EQ(*TrainSentencePiece(TestText(1, 800), training), TestModel(type));
    EXPECT_NE(*TrainSentencePiece(TestText(2, 800), training), TestModel(type));
  }
  EXPECT_NE(TestModel(SentencePieceType::kBpe), TestModel(SentencePieceType::kUnigram));
}

TEST(SentencePieceTraining, TheVocabularyIsTheRequestedOne) {
  for (const SentencePieceType type : {SentencePieceType::kBpe, SentencePieceType::kUnigram}) {
    for (const int64_t vocabulary : {320, 377, 450}) {
      const auto model = TrainSentencePiece(TestText(1, 800), {vocabulary, type});
      ASSERT_TRUE(model.ok()) << model.status();
      sentencepiece_internal::Model library;
      ASSERT_EQ(library.Load(*model), "");
      EXPECT_EQ(library.pieces(), vocabulary);
      EXPECT_EQ(library.end_of_sentence(), 2);
    }
  }
}

TEST(SentencePieceTraining, LinesThatTheLibraryWouldSkipAreTrainedOn) {
  // One line of 300,000 bytes with the character that the library reserves.
  std::string text;
  while (text.size() < 300'000) {
    text += "\u6f22\u5b57 tarenmolisku \u2585vel" + std::to_string(text.size()) + " ";
  }
  const auto model = TrainSentencePiece(text, {.vocabulary = 308});
  ASSERT_TRUE(model.ok()) << model.status();
  sentencepiece_internal::Model library;
  ASSERT_EQ(library.Load(*model), "");
  std::vector<int> tokens;
  ASSERT_EQ(library.Encode("tarenmolisku", tokens), "");
  EXPECT_EQ(tokens.size(), 1u);
}

TEST(SentencePieceTraining, VocabulariesOutOfBoundsAreRefused) {
  const std::string text = TestText(1, 800);
  const struct {
    int64_t vocabulary;
    const char* message;
  } kCases[] = {{0, "vocabulary is 0, not in [260, 1048576]"},
                {-1, "vocabulary is -1"},
                {259, "vocabulary is 259"},
                {1'048'577, "vocabulary is 1048577"},
                {INT64_MAX, "vocabulary is 9223372036854775807"},
                {262, "smaller than required_chars"},
                {100'000, "Please set it to a value <="}};
  for (const auto& one : kCases) {
    const absl::Status status = TrainSentencePiece(text, {.vocabulary = one.vocabulary}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::to_string(one.vocabulary)), HasSubstr(one.message)));
  }
}

TEST(SentencePieceTraining, EmptyAndInvalidTextsAreRefused) {
  for (const std::string_view text : {"", "\n\n\n",
                                      "a\xff"
                                      "b"}) {
    const absl::Status status = TrainSentencePiece(text, {.vocabulary = 300}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("text to train on"));
  }
}

TEST(SentencePieceTraining, TrainingPrintsNothingOnStderr) {
  testing::internal::CaptureStderr();
  EXPECT_TRUE(TrainSentencePiece(TestText(1, 300), {.vocabulary = 330}).ok());
  EXPECT_FALSE(TrainSentencePiece(TestText(1, 300), {.vocabulary = 262}).ok());
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace nibble
