#include "worker/trainer/data/tokenizer_files.h"

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece_model.h"
#include "worker/trainer/data/sentencepiece_testing.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TokenizerFiles, ASavedModelIsFoundByItsLabel) {
  const TempDirectory directory;
  const std::string in = directory.Path("made");
  const std::string label = SentencePieceLabel(TestModel());
  for (int again = 0; again < 2; ++again) {
    const auto path = SaveSentencePieceModel(in, TestModel());
    ASSERT_TRUE(path.ok()) << path.status();
    EXPECT_EQ(*path, in + "/sp-" + label.substr(3) + ".model");
    EXPECT_EQ(Contents(*path), TestModel());
  }
  const auto tokenizer = OpenTokenizer(label, in);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->label(), label);
  EXPECT_EQ((*tokenizer)->vocabulary(), 400);
}

TEST(TokenizerFiles, AModelFileIsCopiedUnderItsLabelAndAnythingElseIsNot) {
  const TempDirectory directory;
  WriteFile(directory.Path("my.model"), TestModel());
  WriteFile(directory.Path("other"), "no model");
  const auto path = CopySentencePieceModel(directory.Path("out"), directory.Path("my.model"));
  ASSERT_TRUE(path.ok()) << path.status();
  EXPECT_EQ(Contents(*path), TestModel());
  EXPECT_TRUE(OpenTokenizer(SentencePieceLabel(TestModel()), directory.Path("out")).ok());
  const absl::Status status =
      CopySentencePieceModel(directory.Path("none"), directory.Path("other")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(directory.Path("other")));
  EXPECT_FALSE(std::filesystem::exists(directory.Path("none")));
  EXPECT_EQ(CopySentencePieceModel(directory.Path("out"), directory.Path("absent")).status().code(),
            absl::StatusCode::kNotFound);
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

TEST(TokenizerFiles, AnotherModelUnderTheNameIsNeverTakenForIt) {
  const TempDirectory directory;
  const std::string label = SentencePieceLabel(TestModel());
  WriteFile(directory.Path(SentencePieceFileName(label)), TestModel(SentencePieceType::kUnigram));
  EXPECT_EQ(OpenTokenizer(label, directory.path()).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(SaveSentencePieceModel(directory.path(), TestModel()).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_THAT(directory.Files(), ElementsAre(SentencePieceFileName(label)));
}

}  // namespace
}  // namespace nibble
