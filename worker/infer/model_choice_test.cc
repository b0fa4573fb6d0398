#include "worker/infer/model_choice.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/infer/infer_testing.h"
#include "worker/trainer/data/data_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

TEST(ModelChoice, UsesTheTokenizerOfTheSourceOrTheNamedOne) {
  TestWeights weights(*ModelPreset("tiny-llama"));
  EXPECT_EQ((*ChooseTokenizer(weights, ""))->label(), "bytes");
  EXPECT_EQ((*ChooseTokenizer(weights, "bytes"))->label(), "bytes");
  weights.ForgetTokenizer();
  EXPECT_EQ((*ChooseTokenizer(weights, "bytes"))->label(), "bytes");
  const absl::Status status = ChooseTokenizer(weights, "").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("test weights of tiny-llama"));
  EXPECT_EQ(ChooseTokenizer(weights, "/nowhere/x.model").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(ModelChoice, TokenizerThatDoesNotFitTheModelIsRefused) {
  const TempDirectory directory;
  const std::string path = directory.Path("x.model");
  WriteFile(path, TestModel());
  TestWeights weights(*ModelPreset("tiny-llama"));
  EXPECT_THAT(std::string(ChooseTokenizer(weights, path).status().message()),
              HasSubstr("was trained with \"bytes\""));
  weights.ForgetTokenizer();
  EXPECT_THAT(std::string(ChooseTokenizer(weights, path).status().message()),
              HasSubstr("400, is over the model's, 272"));
}

TEST(ModelChoice, ParsesPrecisionsAndBoundsLengths) {
  EXPECT_EQ(*ParsePrecision("fp32"), DType::kF32);
  EXPECT_EQ(*ParsePrecision("bf16"), DType::kBf16);
  EXPECT_THAT(std::string(ParsePrecision("fp8").status().message()), HasSubstr("'fp8'"));
  EXPECT_EQ(LongestSequence(*MakeOutline(*ModelPreset("tiny-gpt2"))), 512);
  EXPECT_EQ(LongestSequence(*MakeOutline(*ModelPreset("tiny-llama"))), 1 << 24);
}

}  // namespace
}  // namespace nibble
