#include "worker/infer/generator.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/infer/infer_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

class GeneratorTest : public testing::Test {
 protected:
  absl::StatusOr<Generated> Run(const std::vector<int32_t>& prompt,
                                const GenerateOptions& options) {
    taken.clear();
    return Generate(*decoder, prompt, options, [&](int64_t sample, int32_t token) {
      taken.resize(static_cast<size_t>(sample) + 1);
      taken[static_cast<size_t>(sample)].push_back(token);
      return absl::OkStatus();
    });
  }

  TestWeights weights{*ModelPreset("tiny-hybrid")};
  std::unique_ptr<Decoder> decoder =
      MustCreate(weights, {.precision = DType::kF32, .threads = 2, .max_sequence = 64});
  std::vector<int32_t> prompt = RandomTokens(1, 20, 257);
  std::vector<std::vector<int32_t>> taken;
};

TEST_F(GeneratorTest, GreedyTakesTheLikeliestTokenEveryTime) {
  const auto generated = Run(prompt, {.max_tokens = 8});
  ASSERT_TRUE(generated.ok()) << generated.status();
  ASSERT_EQ(generated->samples.size(), 1u);
  const std::vector<int32_t>& tokens = generated->samples[0].tokens;
  ASSERT_EQ(tokens.size(), 8u);
  EXPECT_EQ(generated->samples[0].stop, StopReason::kMaxTokens);
  EXPECT_EQ(generated->prompt_tokens, 20);
  EXPECT_EQ(generated->decoded_tokens, 7);
  std::vector<int32_t> text = prompt;
  for (const int32_t token : tokens) {
    auto sequence = *decoder->NewSequence(64);
    std::vector<float> logits(static_cast<size_t>(decoder->vocab()));
    ASSERT_TRUE(decoder->Prefill(*sequence, text, absl::MakeSpan(logits)).ok());
    EXPECT_EQ(token, *Sample(logits, {}, 0));
    text.push_back(token);
  }
  EXPECT_EQ(taken[0], tokens);
}

TEST_F(GeneratorTest, SamplesDifferAndTheSeedRepeatsThem) {
  const GenerateOptions options = {
      .max_tokens = 10, .samples = 3, .sampler = {.temperature = 1, .seed = 4}};
  const auto first = Run(prompt, options), again = Run(prompt, options);
  ASSERT_TRUE(first.ok() && again.ok());
  std::set<std::vector<int32_t>> different;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first->samples[i].tokens, again->samples[i].tokens);
    EXPECT_EQ(taken[i], again->samples[i].tokens);
    different.insert(first->samples[i].tokens);
  }
  EXPECT_EQ(different.size(), 3u);
  // A sample does not depend on how many there are.
  const auto alone = Run(prompt, {.max_tokens = 10, .sampler = options.sampler});
  EXPECT_EQ(alone->samples[0].tokens, first->samples[0].tokens);
}

TEST_F(GeneratorTest, TheEndOfADocumentEndsASampleAndIsNoTokenOfIt) {
  const auto free = Run(prompt, {.max_tokens = 8});
  ASSERT_TRUE(free.ok());
  const std::vector<int32_t>& tokens = free->samples[0].tokens;
  const auto stopped = Run(prompt, {.max_tokens = 8, .end_of_document = tokens[3]});
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped->samples[0].stop, StopReason::kEndOfDocument);
  EXPECT_LT(stopped->samples[0].tokens.size(), 4u);
}

TEST_F(GeneratorTest, TokensBeyondTheTokenizersVocabularyAreNeverDrawn) {
  const auto generated =
      Run(prompt, {.max_tokens = 40, .sampler = {.temperature = 5, .seed = 1}, .vocabulary = 10});
  ASSERT_TRUE(generated.ok()) << generated.status();
  for (const int32_t token : generated->samples[0].tokens) EXPECT_LT(token, 10);
}

TEST_F(GeneratorTest, WhatDoesNotFitIsRefusedBeforeAnythingRuns) {
  const auto message = [&](const GenerateOptions& options) {
    return std::string(Run(prompt, options).status().message());
  };
  EXPECT_THAT(message({.max_tokens = 46}),
              HasSubstr("a sequence of 65 tokens is over max_sequence, 64"));
  EXPECT_EQ(message({.max_tokens = 45}), "");
  EXPECT_THAT(message({.max_tokens = 0}), HasSubstr("max_tokens: 0 is below 1"));
  EXPECT_THAT(message({.max_tokens = 1, .samples = 0}), HasSubstr("samples: 0 is below 1"));
  EXPECT_THAT(message({.max_tokens = 1, .sampler = {.top_p = 2}}), HasSubstr("top_p: 2"));
  EXPECT_THAT(message({.max_tokens = 1, .vocabulary = 1000}), HasSubstr("vocabulary: 1000"));
  EXPECT_FALSE(Run({}, {.max_tokens = 1}).ok());
}

TEST_F(GeneratorTest, AnErrorOfTheTakerEndsTheRun) {
  const auto generated = Generate(*decoder, prompt, {.max_tokens = 8},
                                  [](int64_t, int32_t) { return absl::CancelledError("enough"); });
  EXPECT_EQ(generated.status().code(), absl::StatusCode::kCancelled);
}

TEST(PromptTokens, AnEmptyPromptBeginsADocument) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(*PromptTokens(tokenizer, ""), (std::vector<int32_t>{tokenizer.end_of_document()}));
  EXPECT_EQ(*PromptTokens(tokenizer, "ab"), (std::vector<int32_t>{'a', 'b'}));
}

}  // namespace
}  // namespace nibble
