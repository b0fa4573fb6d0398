#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/files/files.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/sentencepiece_model.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ByteTokenizer, EveryByteIsItsOwnTokenAndDecodesToItself) {
  std::string text;
  for (int b = 0; b < 256; ++b) text += static_cast<char>(b);
  const std::vector<int32_t> tokens = Encoded(ByteTokenizer(), text);
  ASSERT_EQ(tokens.size(), 256u);
  for (int b = 0; b < 256; ++b) EXPECT_EQ(tokens[b], b);
  EXPECT_EQ(*ByteTokenizer().Decode(tokens), text);
}

TEST(ByteTokenizer, TextsLongerThanAPieceAreEncodedInOrder) {
  for (const size_t size : {0, 1, 4095, 4096, 4097, 10'000}) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>(i * 31 + i / 4096);
    EXPECT_EQ(*ByteTokenizer().Decode(Encoded(ByteTokenizer(), text)), text) << size;
  }
}

TEST(ByteTokenizer, EndOfDocumentAddsNoText) {
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

using ::testing::ElementsAre;

std::unique_ptr<Tokenizer> Model(SentencePieceType type = SentencePieceType::kBpe) {
  return *SentencePieceTokenizer::FromModel("test", TestModel(type));
}

TEST(TokenizerFiles, ASavedModelIsFoundByItsLabel) {
  const TempDirectory directory;
  const std::string in = directory.Path("made");
  const std::string label = SentencePieceLabel(TestModel());
  for (int again = 0; again < 2; ++again) {
    const auto path = SaveTokenizer(in, *Model());
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(*path, in + "/sp-" + label.substr(3) + ".model");
    EXPECT_EQ(Contents(*path), TestModel());
  }
  const auto tokenizer = OpenTokenizer(label, in);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->label(), label);
  EXPECT_EQ((*tokenizer)->vocabulary(), 400);
}

TEST(TokenizerFiles, TheKindOfAFileIsDetectedFromItsContent) {
  const TempDirectory directory;
  WriteFile(directory.Path("any"), TestModel());
  EXPECT_EQ((*LoadTokenizer(directory.Path("any")))->label(), SentencePieceLabel(TestModel()));
  EXPECT_EQ((*LoadTokenizer("bytes"))->label(), "bytes");
  WriteFile(directory.Path("other"), "no model");
  WriteFile(directory.Path("brace"), " {\"model\": 1}");
  for (const char* name : {"other", "brace"}) {
    const absl::Status status = LoadTokenizer(directory.Path(name)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(directory.Path(name)));
  }
  EXPECT_EQ(LoadTokenizer(directory.Path("absent")).status().code(), absl::StatusCode::kNotFound);
}

TEST(TokenizerFiles, NamesFollowFromLabels) {
  EXPECT_EQ(TokenizerFileName("sp:85944171f73967e8"), "sp-85944171f73967e8.model");
  EXPECT_EQ(TokenizerFileName("hf:85944171f73967e8"), "hf-85944171f73967e8.json");
  for (const char* label : {"", "bytes", "gpt2", "sp:", "sp:85944171f73967e", "sp:85944171F73967E8",
                            "sp:../../../../../xx", "xx:85944171f73967e8"}) {
    EXPECT_EQ(TokenizerFileName(label), "") << label;
  }
}

TEST(TokenizerFiles, BytesNeedNoFile) {
  const auto tokenizer = OpenTokenizer("bytes", "/nowhere");
  ASSERT_TRUE(tokenizer.ok());
  EXPECT_EQ((*tokenizer)->vocabulary(), 257);
}

TEST(TokenizerFiles, LabelsWithoutATokenizerAreRefused) {
  for (const char* label : {"", "gpt2", "sp:", "sp:../../x", "Bytes"}) {
    EXPECT_EQ(OpenTokenizer(label, "/tmp").status().code(), absl::StatusCode::kInvalidArgument);
  }
  const absl::Status absent = OpenTokenizer("sp:0123456789abcdef", "/tmp").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("/tmp/sp-0123456789abcdef.model"));
}

TEST(TokenizerFiles, AnotherModelUnderTheFileNameIsRefused) {
  const TempDirectory directory;
  const std::string label = SentencePieceLabel(TestModel());
  const std::string name = TokenizerFileName(label);
  WriteFile(directory.Path(name), TestModel(SentencePieceType::kUnigram));
  EXPECT_EQ(OpenTokenizer(label, directory.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SaveTokenizer(directory.path(), *Model()).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(*ListDirectory(directory.path()), ElementsAre(name));
}

}  // namespace
}  // namespace nibble
