#include "worker/trainer/data/parallel_encoder.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/sentencepiece_testing.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string NameOf(int64_t document) { return absl::StrCat("document ", document); }

std::vector<std::string> RandomTexts(uint32_t seed, int count, size_t longest) {
  std::mt19937 random(seed);
  std::vector<std::string> texts(count);
  for (std::string& text : texts) {
    text.resize(random() % (longest + 1));
    for (char& c : text) c = random() % 40 == 0 ? '\n' : static_cast<char>('a' + random() % 26);
  }
  return texts;
}

// The documents' tokens as they were delivered; checks that pieces come in order and without gaps.
struct Outcome {
  absl::Status status;
  std::vector<std::vector<int32_t>> documents;  // those that ended
  size_t pieces = 0;
};
Outcome Encode(const Tokenizer& tokenizer, const std::vector<std::string>& texts, int threads,
               size_t round_bytes) {
  Outcome outcome;
  int64_t offset = 0;
  std::vector<int32_t> tokens;
  ParallelEncoder encoder(
      tokenizer, threads, NameOf,
      [&](const ParallelEncoder::Encoded& piece) {
        EXPECT_EQ(piece.document, static_cast<int64_t>(outcome.documents.size()));
        EXPECT_EQ(piece.offset, offset);
        ++outcome.pieces;
        offset += piece.bytes;
        tokens.insert(tokens.end(), piece.tokens.begin(), piece.tokens.end());
        if (piece.ends_document) {
          EXPECT_EQ(offset, static_cast<int64_t>(texts[piece.document].size()));
          outcome.documents.push_back(std::exchange(tokens, {}));
          offset = 0;
        }
        return absl::OkStatus();
      },
      round_bytes);
  for (const std::string& text : texts) {
    const std::string dies_early = text;
    outcome.status = encoder.Add(dies_early);
    if (!outcome.status.ok()) return outcome;
  }
  outcome.status = encoder.Finish();
  return outcome;
}

std::vector<std::vector<int32_t>> OneByOne(const Tokenizer& tokenizer,
                                           const std::vector<std::string>& texts) {
  std::vector<std::vector<int32_t>> documents;
  for (const std::string& text : texts) {
    std::vector<int32_t>& tokens = documents.emplace_back();
    EXPECT_TRUE(tokenizer
                    .Encode(text,
                            [&](absl::Span<const int32_t> more) {
                              tokens.insert(tokens.end(), more.begin(), more.end());
                              return absl::OkStatus();
                            })
                    .ok());
  }
  return documents;
}

TEST(ParallelEncoder, TokensAreThoseOfOneThreadForAnyNumberAndAnySizeOfRound) {
  const std::vector<std::string> texts = RandomTexts(1, 60, 3000);
  const auto model = SentencePieceTokenizer::FromModel("m", TestModel());
  ASSERT_TRUE(model.ok());
  const ByteTokenizer bytes;
  for (const Tokenizer* tokenizer : std::initializer_list<const Tokenizer*>{model->get(), &bytes}) {
    const auto expected = OneByOne(*tokenizer, texts);
    for (const int threads : {1, 2, 3, 8}) {
      for (const size_t round : {1, 100, 2999, 20'000, 0}) {
        const Outcome outcome = Encode(*tokenizer, texts, threads, round);
        ASSERT_TRUE(outcome.status.ok()) << outcome.status;
        ASSERT_EQ(outcome.documents, expected) << threads << " " << round;
      }
    }
  }
}

TEST(ParallelEncoder, ALongDocumentIsCutIntoPieces) {
  const std::vector<std::string> texts = {"short", RandomTexts(2, 1, 1)[0],
                                          std::string(1'000'000, 'x'), "after"};
  for (const int threads : {1, 3}) {
    for (const size_t round : {100'000, 5'000'000}) {
      const Outcome outcome = Encode(ByteTokenizer(), texts, threads, round);
      ASSERT_TRUE(outcome.status.ok());
      EXPECT_EQ(outcome.documents, OneByOne(ByteTokenizer(), texts));
      EXPECT_EQ(outcome.pieces, 3 + (1'000'000 + kEncodePieceBytes - 1) / kEncodePieceBytes);
    }
  }
}

TEST(ParallelEncoder, ManyTinyDocumentsNeedNoRoundOfTheirSize) {
  const std::vector<std::string> texts(20'000, "a");
  for (const int threads : {1, 2}) {
    const Outcome outcome = Encode(ByteTokenizer(), texts, threads, 0);
    ASSERT_TRUE(outcome.status.ok());
    EXPECT_EQ(outcome.documents.size(), texts.size());
  }
}

TEST(ParallelEncoder, NothingAddedIsNothingDelivered) {
  EXPECT_THAT(Encode(ByteTokenizer(), {}, 2, 0).documents, IsEmpty());
  EXPECT_THAT(Encode(ByteTokenizer(), {"", "a", ""}, 2, 0).documents,
              ElementsAre(IsEmpty(), ElementsAre('a'), IsEmpty()));
}

TEST(ParallelEncoder, OfSeveralErrorsTheFirstDocumentsComesOutByNameWithAllBeforeItDelivered) {
  const auto model = SentencePieceTokenizer::FromModel("m", TestModel());
  std::vector<std::string> texts = RandomTexts(3, 100, 500);
  texts[41] += "\xff";
  texts[43] = "\xfe";
  texts[90] = "\xfd";
  for (const int threads : {1, 4}) {
    for (const size_t round : {1, 1000, 0}) {
      const Outcome outcome = Encode(**model, texts, threads, round);
      EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("document 41: byte "));
      EXPECT_EQ(outcome.documents.size(), 41u);
    }
  }
}

TEST(ParallelEncoder, AnErrorOfTheReceiverStopsEverything) {
  int calls = 0;
  const ByteTokenizer bytes;
  ParallelEncoder encoder(bytes, 2, NameOf, [&](const ParallelEncoder::Encoded&) {
    return ++calls == 3 ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  });
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(encoder.Add("text").ok());
  EXPECT_EQ(encoder.Finish(), absl::ResourceExhaustedError("full"));
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace nibble
