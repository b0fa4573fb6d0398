#include "worker/infer/text_stream.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "worker/trainer/data/byte_tokenizer.h"
#include "worker/trainer/data/sentencepiece_testing.h"
#include "worker/trainer/data/sentencepiece_tokenizer.h"
#include "worker/trainer/data/utf8.h"

namespace nibble {
namespace {

std::vector<int32_t> TokensOf(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> tokens;
  const absl::Status status = tokenizer.Encode(text, [&](absl::Span<const int32_t> some) {
    tokens.insert(tokens.end(), some.begin(), some.end());
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  return tokens;
}

// Each piece given out, the last of Finish.
std::vector<std::string> Pieces(const Tokenizer& tokenizer, absl::Span<const int32_t> before,
                                absl::Span<const int32_t> tokens) {
  auto stream = TextStream::Create(tokenizer, before);
  EXPECT_TRUE(stream.ok()) << stream.status();
  std::vector<std::string> pieces;
  for (const int32_t token : tokens) {
    const auto piece = stream->Add(token);
    EXPECT_TRUE(piece.ok()) << piece.status();
    pieces.push_back(piece.ok() ? *piece : "");
  }
  pieces.push_back(stream->Finish());
  return pieces;
}

std::string Joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

TEST(TextStream, CharactersComeWhole) {
  const std::string text = "a\u00e9\u20ac\U0001f600z";
  const ByteTokenizer tokenizer;
  EXPECT_EQ(Pieces(tokenizer, {}, TokensOf(tokenizer, text)),
            (std::vector<std::string>{"a", "", "\u00e9", "", "", "\u20ac", "", "", "", "\U0001f600",
                                      "z", ""}));
}

TEST(TextStream, BytesThatAreNoCharacterAreReplacedOneByOne) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(Joined(Pieces(tokenizer, {}, {0xff, 'a', 0xe2, 0x82, 'b', 0xc3})),
            "\ufffda\ufffd\ufffdb\ufffd");
}

TEST(TextStream, PiecesOfASubwordModelAddUpToItsText) {
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", TestModel());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = TestText(3, 40) + " \u4e2d\u6587 rare \U0001f600 end";
  const std::vector<int32_t> tokens = TokensOf(**tokenizer, text);
  ASSERT_GT(tokens.size(), 300u);
  const auto whole = (*tokenizer)->Decode(tokens);
  ASSERT_TRUE(whole.ok());
  const std::vector<std::string> pieces = Pieces(**tokenizer, {}, tokens);
  EXPECT_EQ(Joined(pieces), *whole);
  for (const std::string& piece : pieces) {
    EXPECT_EQ(FindInvalidUtf8(piece), std::string_view::npos);
  }
}

TEST(TextStream, AContinuationKeepsTheSpaceAfterThePrompt) {
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", TestModel());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "the moren the tali be no\nthe an\n";
  const std::vector<int32_t> tokens = TokensOf(**tokenizer, text);
  const std::string whole = *(*tokenizer)->Decode(tokens);
  for (size_t cut = 1; cut < tokens.size(); ++cut) {
    const absl::Span<const int32_t> all = tokens;
    const std::string before = *(*tokenizer)->Decode(all.first(cut));
    EXPECT_EQ(before + Joined(Pieces(**tokenizer, all.first(cut), all.subspan(cut))), whole) << cut;
  }
}

TEST(TextStream, ATokenOutsideTheVocabularyIsAnError) {
  const ByteTokenizer tokenizer;
  auto stream = TextStream::Create(tokenizer, {});
  ASSERT_TRUE(stream.ok());
  EXPECT_FALSE(stream->Add(300).ok());
  EXPECT_EQ(*stream->Add('a'), "a");
  EXPECT_FALSE(TextStream::Create(tokenizer, std::vector<int32_t>{-1}).ok());
}

}  // namespace
}  // namespace nibble
