#include "worker/trainer/loop/job_data.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/loop/run_state.h"

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

TEST_F(DataTokenizerTest, ADirectoryThatCannotBeMadeIsNoErrorToTryAgainFor) {
  Train({directory_.Path("text.txt")});
  WriteFile(directory_.Path("data"), "not a directory");
  const absl::Status status = JobData::Prepare(spec_, directory_.path());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("data: cannot make "));
}

TEST(KindOfSource, OnlyAMissingFileIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(KindOfSource("/no/such/file", 0).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(KindOfSource("/" + std::string(300, 'x'), 0).status()));
}

TEST(DecisiveDifference, TokenizersAreComparedByTheirLabels) {
  JobSpec then, now;
  then.data.tokenizer_label = now.data.tokenizer_label = "sp:0123456789abcdef";
  then.data.tokenizer = JobTokenizer::kSentencePiece;
  then.data.tokenizer_model = "/a/model";
  EXPECT_EQ(DecisiveDifference(then, now), "");
  now.data.tokenizer_label = "bytes";
  EXPECT_EQ(DecisiveDifference(then, now), "data");
  // A checkpoint from before there were labels.
  then = {};
  then.data.tokenizer = JobTokenizer::kBytes;
  EXPECT_EQ(DecisiveDifference(then, now), "");
  then.data.tokenizer = JobTokenizer::kSentencePiece;
  EXPECT_EQ(DecisiveDifference(then, now), "data");
}

}  // namespace
}  // namespace nibble
