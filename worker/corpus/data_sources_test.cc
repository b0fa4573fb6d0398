#include "worker/corpus/data_sources.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/tokenizer.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DataTokenizerTest : public testing::Test {
 protected:
  DataTokenizerTest() {
    spec_.model.vocab = 512;
    const auto tokenizer = *SentencePieceTokenizer::FromModel("test", TestModel());
    label_ = tokenizer->label();
    model_ = *SaveTokenizer(directory_.Path("pieces"), *tokenizer);
    WriteFile(directory_.Path("text.txt"), "some text");
    WriteFile(directory_.Path("raw.bin"), "tokens");
  }
  std::string Shard(const std::string& name, const std::string& label) {
    const std::string path = directory_.Path(name);
    WriteShard(path, {{1, 2, 3}}, {.tokenizer = label, .vocabulary = 257, .chunk_bytes = 64});
    return path;
  }
  void Train(const std::vector<std::string>& paths) {
    spec_.data.train.clear();
    for (const std::string& path : paths) {
      spec_.data.train.push_back({.path = path, .token_width = path.ends_with(".bin") ? 2 : 0});
    }
  }
  std::string Refusal() const {
    const absl::Status status = FindDataTokenizer(spec_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  TempDirectory directory_;
  JobSpec spec_;
  std::string label_, model_;
};

TEST_F(DataTokenizerTest, ItIsThatOfTheShardsAndMakesTheTokensOfTexts) {
  Train({directory_.Path("text.txt"), Shard("pieces/a.tokens", label_)});
  const auto found = FindDataTokenizer(spec_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->label, label_);
  ASSERT_NE(found->tokenizer, nullptr);
  EXPECT_EQ(found->tokenizer->label(), label_);
}

TEST_F(DataTokenizerTest, TextAloneIsBytes) {
  Train({directory_.Path("text.txt")});
  EXPECT_EQ(FindDataTokenizer(spec_)->label, "bytes");
  spec_.model.vocab = 256;
  EXPECT_THAT(Refusal(), HasSubstr("model.vocab: 256 is under 257"));
}

TEST_F(DataTokenizerTest, AnotherOneThanTheShardsIsRefusedWithBothNamed) {
  Train({Shard("a.tokens", label_)});
  spec_.data.tokenizer = JobTokenizer::kBytes;
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("data.tokenizer: bytes, but "),
                               HasSubstr("(data.train[0]) was made with " + label_)));
  spec_.data.tokenizer = JobTokenizer::kHuggingFace;
  spec_.data.tokenizer_model = model_;
  EXPECT_THAT(Refusal(), HasSubstr("is the tokenizer " + label_ + ", but data.tokenizer is hugg"));
  spec_.data.tokenizer = JobTokenizer::kData;
  EXPECT_TRUE(FindDataTokenizer(spec_).ok());
  spec_.data.tokenizer_label = "sp:0123456789abcdef";
  EXPECT_THAT(Refusal(), HasSubstr("data.tokenizer_label: sp:0123456789abcdef, but the tokenizer"));
  spec_ = {};
  spec_.model.vocab = 512;
  Train({Shard("a.tokens", label_), Shard("b.tokens", "bytes")});
  EXPECT_THAT(Refusal(), HasSubstr("data.tokenizer: " + label_));
}

TEST_F(DataTokenizerTest, WhatAFileDoesNotSayIsAskedFor) {
  Train({directory_.Path("raw.bin")});
  EXPECT_THAT(Refusal(),
              AllOf(HasSubstr("data.tokenizer: "),
                    HasSubstr("(data.train[0]) does not record its tokenizer"),
                    HasSubstr("data.tokenizer_model"), HasSubstr("data.tokenizer_label")));
  spec_.data.tokenizer_label = "gpt2";
  const auto named = FindDataTokenizer(spec_);
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_EQ(named->label, "gpt2");
  EXPECT_EQ(named->tokenizer, nullptr);
  Train({directory_.Path("raw.bin"), directory_.Path("text.txt")});
  EXPECT_THAT(Refusal(), HasSubstr("data.tokenizer_model: missing"));
  spec_.data.tokenizer_label = "";
  spec_.data.tokenizer_model = model_;
  EXPECT_EQ(FindDataTokenizer(spec_)->label, label_);
}

TEST_F(DataTokenizerTest, AShardWithoutItsTokenizersFileIsTrainedOnAndTextBesideItIsNot) {
  Train({Shard("elsewhere.tokens", label_)});
  const auto found = FindDataTokenizer(spec_);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->label, label_);
  EXPECT_EQ(found->tokenizer, nullptr);
  Train({Shard("elsewhere.tokens", label_), directory_.Path("text.txt")});
  EXPECT_THAT(Refusal(), HasSubstr("the file of the tokenizer " + label_ + " is not beside"));
}

TEST(KindOfSource, OnlyAMissingFileIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(KindOfSource("/no/such/file", 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KindOfSource("/" + std::string(300, 'x'), 0).status()));
}

TEST_F(DataTokenizerTest, TheCheckOfTheDataReportsEveryMissingOrUnreadableSource) {
  WriteFile(directory_.Path("rows.bin"), std::string_view("PAR1\0\0\0\0PAR1", 12));
  WriteFile(directory_.Path("texts/rows.parquet"), "");
  Train({directory_.Path("none.tokens"), directory_.Path("rows.bin")});
  spec_.data.validation = {{.name = "v", .path = "/no/such/validation"}};
  const absl::Status status = CheckDataSources(spec_).status();
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("data.train[0]: " + directory_.Path("none.tokens") + ": no such file"),
            HasSubstr("data.train[1]: "), HasSubstr("pyarrow"),
            HasSubstr("\ndata.validation[0]: /no/such/validation: no such file")));
  Train({directory_.Path("texts")});
  spec_.data.validation.clear();
  EXPECT_THAT(std::string(CheckDataSources(spec_).status().message()),
              AllOf(HasSubstr("data.train[0]: "), HasSubstr("rows.parquet: Parquet is not read")));
}

TEST_F(DataTokenizerTest, TheCheckOfTheDataComparesItWithTheModelAndItsSequences) {
  Train({Shard("pieces/a.tokens", label_)});
  spec_.data.sequence = 2;
  const auto valid = CheckDataSources(spec_);
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(*valid, "1 source was opened; its tokenizer is " + label_);
  spec_.data.sequence = 3;
  EXPECT_THAT(std::string(CheckDataSources(spec_).status().message()),
              HasSubstr("a.tokens has 3 tokens; one sample of data.sequence 3 takes 4"));
  spec_.data.sequence = 2;
  spec_.model.vocab = 300;
  EXPECT_THAT(std::string(CheckDataSources(spec_).status().message()),
              HasSubstr("model.vocab: 300 is under 400"));
}

}  // namespace
}  // namespace nibble
