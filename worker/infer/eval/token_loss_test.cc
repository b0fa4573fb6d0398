#include "worker/infer/eval/token_loss.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/infer/infer_testing.h"
#include "worker/trainer/data/batch_builder.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kVocab = 272;

// Training's validation of the same windows: the mean loss and the number of scored targets.
std::pair<double, int64_t> TrainingLoss(const TestWeights& weights,
                                        std::shared_ptr<const TokenSource> source,
                                        const TokenLossOptions& options) {
  TestRig rig(weights.outline().spec, "bf16",
              {.activations = DType::kF32, .sequences = 1, .length = options.sequence});
  for (size_t i = 0; i < weights.outline().params.size(); ++i) {
    const std::vector<float>& values = weights.values(static_cast<int64_t>(i));
    std::copy(values.begin(), values.end(), rig.parameters->weight(static_cast<int64_t>(i)));
  }
  const auto set = ValidationSet::Create(std::move(source), {.global_sequences = 1,
                                                             .length = options.sequence,
                                                             .max_batches = options.max_windows,
                                                             .window = options.window});
  EXPECT_TRUE(set.ok()) << set.status();
  double sum = 0;
  int64_t counted = 0;
  for (int64_t i = 0; i < set->batches(); ++i) {
    const Batch batch = *set->Build({.step = i});
    const StepContext context = {
        .layout = {.sequences = 1, .length = options.sequence, .doc_begin = batch.doc_begin.data()},
        .batch_tokens = options.sequence};
    std::vector<float> loss(batch.tokens.size());
    EXPECT_TRUE(rig.model->BeginStep(context).ok());
    const absl::Status status = rig.model->Evaluate(
        context, {.tokens = batch.tokens.data(), .targets = batch.targets.data()}, loss.data());
    EXPECT_TRUE(status.ok()) << status;
    for (size_t t = 0; t < loss.size(); ++t) {
      sum += loss[t];
      counted += batch.targets[t] == kIgnoredTarget ? 0 : 1;
    }
  }
  return {sum / static_cast<double>(counted), counted};
}

class TokenLossTest : public testing::TestWithParam<const char*> {
 protected:
  TestWeights weights{*ModelPreset(GetParam())};
  std::shared_ptr<const TokenSource> source =
      MakeShard(RandomDocuments(1, 12, 90, kVocab), TestOptions(kVocab));
};

TEST_P(TokenLossTest, LossMatchesTrainingsValidation) {
  const auto decoder =
      MustCreate(weights, {.precision = DType::kF32, .threads = 2, .max_sequence = 512});
  for (const WindowOptions& window :
       {WindowOptions{}, {.reset_at_documents = false}, {.ignore_first_of_document = true}}) {
    const TokenLossOptions options = {.sequence = 50, .max_windows = 7, .window = window};
    int64_t last = 0;
    const auto loss = EvaluateTokens(*decoder, source, options, [&](int64_t done, int64_t all) {
      EXPECT_GT(done, last);
      EXPECT_EQ(all, 7);
      last = done;
    });
    ASSERT_TRUE(loss.ok()) << loss.status();
    const auto [expected, counted] = TrainingLoss(weights, source, options);
    EXPECT_NEAR(loss->loss, expected, 1e-5 * expected);
    EXPECT_EQ(loss->tokens, counted);
    EXPECT_EQ(loss->windows, 7);
    EXPECT_EQ(last, 7);
    EXPECT_DOUBLE_EQ(loss->perplexity, std::exp(loss->loss));
  }
}

TEST_P(TokenLossTest, ResultsDoNotDependOnThreads) {
  const TokenLossOptions options = {.sequence = 40};
  const auto one = MustCreate(weights, {.threads = 1, .max_sequence = 64}),
             three = MustCreate(weights, {.threads = 3, .max_sequence = 64});
  const auto a = EvaluateTokens(*one, source, options, {});
  const auto b = EvaluateTokens(*three, source, options, {});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->loss, b->loss);
  EXPECT_EQ(a->tokens, b->tokens);
}

INSTANTIATE_TEST_SUITE_P(Models, TokenLossTest, testing::Values("tiny-hybrid", "tiny-gpt2"),
                         [](const auto& info) {
                           return std::string(info.param) == "tiny-gpt2" ? "gpt2" : "hybrid";
                         });

TEST(TokenLoss, DataThatDoesNotFitTheModelIsNamed) {
  TestWeights weights(*ModelPreset("tiny-gpt2"));
  const auto decoder = MustCreate(weights, {.threads = 1, .max_sequence = 1000});
  const auto message = [&](std::shared_ptr<const TokenSource> source,
                           const TokenLossOptions& options) {
    return std::string(EvaluateTokens(*decoder, source, options, {}).status().message());
  };
  const auto small = MakeShard(RandomDocuments(1, 2, 9, kVocab), TestOptions(kVocab));
  EXPECT_THAT(message(small, {.sequence = 900}), HasSubstr("tokens is"));
  const auto source = MakeShard(RandomDocuments(1, 50, 90, kVocab), TestOptions(kVocab));
  EXPECT_THAT(message(source, {.sequence = 513}),
              HasSubstr("a sequence of 513 tokens is over the model's learned positions, 512"));
  EXPECT_THAT(message(source, {.sequence = 0}), HasSubstr("length is 0"));
  const auto large = MakeShard(RandomDocuments(1, 50, 90, 1000), TestOptions(1000));
  EXPECT_THAT(message(large, {.sequence = 10}),
              HasSubstr("vocabulary is 1000, over the model's, 272"));
}

}  // namespace
}  // namespace nibble
