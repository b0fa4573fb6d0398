#include "worker/infer/decoder.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/late/late_device.h"
#include "worker/infer/infer_testing.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

using ::testing::HasSubstr;

ModelSpec Spec(const std::string& name) {
  if (name == "odd-hybrid" || name == "one-tap-hybrid") {
    // No size is a multiple of sixteen unless the format requires it.
    ModelSpec spec = HybridSpec();
    spec.vocab = 51;
    spec.head_dim = 20;
    spec.heads = 6;
    spec.mamba_head_dim = 10;
    spec.mamba_heads = 6;
    spec.biases = true;
    if (name == "one-tap-hybrid") spec.conv_width = 1;  // its window is empty
    return spec;
  }
  return *ModelPreset(name);
}

// Logits of training's forward pass: [tokens, vocab].
std::vector<float> TrainingLogits(const TestWeights& weights, const std::vector<int32_t>& tokens) {
  const auto length = static_cast<int64_t>(tokens.size());
  TestRig rig(weights.outline().spec, "bf16",
              {.activations = DType::kF32, .sequences = 1, .length = length});
  for (size_t i = 0; i < weights.outline().params.size(); ++i) {
    const std::vector<float>& values = weights.values(static_cast<int64_t>(i));
    std::copy(values.begin(), values.end(), rig.parameters->weight(static_cast<int64_t>(i)));
  }
  const StepContext context = {.layout = {.sequences = 1, .length = length},
                               .batch_tokens = length};
  const int64_t vocab = weights.outline().spec.vocab;
  std::vector<float> logits(static_cast<size_t>(length * vocab));
  absl::Status status = rig.model->BeginStep(context);
  EXPECT_TRUE(status.ok()) << status;
  status = rig.model->Logits(context, {.tokens = tokens.data()},
                             MutableMatrix::Of(logits.data(), length, vocab));
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

std::vector<float> PrefillLogits(Decoder& decoder, const std::vector<int32_t>& tokens) {
  auto sequence = *decoder.NewSequence(static_cast<int64_t>(tokens.size()));
  return AllLogits(decoder, *sequence, tokens);
}

// Runs in calls of the given lengths, repeatedly.
std::vector<float> PiecemealLogits(Decoder& decoder, const std::vector<int32_t>& tokens,
                                   const std::vector<size_t>& lengths) {
  auto sequence = *decoder.NewSequence(static_cast<int64_t>(tokens.size()));
  std::vector<float> logits;
  for (size_t begin = 0, call = 0; begin < tokens.size(); ++call) {
    const size_t n = std::min(lengths[call % lengths.size()], tokens.size() - begin);
    const std::vector<float> some =
        AllLogits(decoder, *sequence, absl::MakeConstSpan(tokens).subspan(begin, n));
    logits.insert(logits.end(), some.begin(), some.end());
    begin += n;
  }
  return logits;
}

class DecoderTest : public testing::TestWithParam<const char*> {
 protected:
  DecoderTest() : weights(Spec(GetParam())) {}
  std::unique_ptr<Decoder> Make(DType precision, int threads = 2, int64_t pass_tokens = 256) {
    return MustCreate(weights, {.precision = precision,
                                .threads = threads,
                                .max_sequence = 1024,
                                .pass_tokens = pass_tokens});
  }
  std::vector<int32_t> Tokens(int64_t count, uint32_t seed = 1) const {
    return RandomTokens(seed, count, weights.outline().spec.vocab);
  }

  TestWeights weights;
};

TEST_P(DecoderTest, PromptLogitsMatchTraining) {
  const std::vector<int32_t> tokens = Tokens(150);
  const auto decoder = Make(DType::kF32);
  EXPECT_LT(RelativeError(PrefillLogits(*decoder, tokens), TrainingLogits(weights, tokens)), 1e-5);
}

TEST_P(DecoderTest, TokenByTokenLogitsMatchTraining) {
  const std::vector<int32_t> tokens = Tokens(150);
  const auto decoder = Make(DType::kF32);
  EXPECT_LT(RelativeError(PiecemealLogits(*decoder, tokens, {1}), TrainingLogits(weights, tokens)),
            1e-5);
}

TEST_P(DecoderTest, LogitsDoNotDependOnTheDivisionIntoCalls) {
  const std::vector<int32_t> tokens = Tokens(300);
  const auto decoder = Make(DType::kF32);
  const std::vector<float> whole = PrefillLogits(*decoder, tokens);
  for (const std::vector<size_t>& lengths :
       {std::vector<size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {33}, {64, 1}, {128, 5, 1, 1}}) {
    EXPECT_LT(RelativeError(PiecemealLogits(*decoder, tokens, lengths), whole), 1e-5)
        << testing::PrintToString(lengths);
  }
  for (const int64_t pass_tokens : {1, 7, 100}) {
    const auto other = Make(DType::kF32, 2, pass_tokens);
    EXPECT_LT(RelativeError(PrefillLogits(*other, tokens), whole), 1e-5) << pass_tokens;
  }
}

TEST_P(DecoderTest, ResultsDoNotDependOnTheNumberOfThreads) {
  const std::vector<int32_t> tokens = Tokens(300);
  for (const DType precision : {DType::kF32, DType::kBf16}) {
    const auto one = Make(precision, 1), three = Make(precision, 3);
    for (const std::vector<size_t>& lengths : {std::vector<size_t>{300}, {37}, {1}}) {
      const std::vector<float> a = PiecemealLogits(*one, tokens, lengths);
      const std::vector<float> b = PiecemealLogits(*three, tokens, lengths);
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << lengths[0];
    }
  }
}

TEST_P(DecoderTest, Bf16StaysCloseToFp32) {
  const std::vector<int32_t> tokens = Tokens(100);
  const std::vector<float> exact = PrefillLogits(*Make(DType::kF32), tokens);
  const auto rounded = Make(DType::kBf16);
  EXPECT_LT(RelativeError(PrefillLogits(*rounded, tokens), exact), 0.1);
  EXPECT_LT(RelativeError(PiecemealLogits(*rounded, tokens, {1}), exact), 0.1);
}

TEST_P(DecoderTest, SequencesOfOneCallAreIndependent) {
  const auto decoder = Make(DType::kF32);
  std::vector<std::vector<int32_t>> texts = {Tokens(5, 1), Tokens(90, 2), Tokens(1, 3),
                                             Tokens(40, 4)};
  std::vector<std::unique_ptr<SequenceState>> states;
  std::vector<Decoder::Piece> pieces;
  std::vector<std::vector<float>> losses;
  std::vector<absl::Span<float>> loss_spans;
  std::vector<absl::Span<const int32_t>> targets;
  for (const auto& text : texts) losses.emplace_back(text.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    states.push_back(*decoder->NewSequence(200));
    pieces.push_back({states.back().get(), texts[i]});
    targets.push_back(texts[i]);
    loss_spans.push_back(absl::MakeSpan(losses[i]));
  }
  ASSERT_TRUE(decoder->Losses(pieces, targets, loss_spans).ok());
  // Then one more token each.
  const std::vector<int32_t> next = Tokens(4, 9);
  for (size_t i = 0; i < texts.size(); ++i) pieces[i].tokens = {&next[i], 1};
  const auto vocab = static_cast<size_t>(decoder->vocab());
  std::vector<float> logits;
  const absl::Status status =
      decoder->Run(pieces, Decoder::Wanted::kLast,
                   [&](absl::Span<const Decoder::Place> places, const float* rows) {
                     logits.insert(logits.end(), rows, rows + places.size() * vocab);
                     return absl::OkStatus();
                   });
  ASSERT_TRUE(status.ok()) << status;

  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<int32_t> text = texts[i];
    text.push_back(next[i]);
    const std::vector<float> alone = PrefillLogits(*decoder, text);
    EXPECT_LT(RelativeError(absl::MakeConstSpan(logits).subspan(i * vocab, vocab),
                            absl::MakeConstSpan(alone).subspan(texts[i].size() * vocab)),
              1e-5);
    for (size_t t = 0; t < texts[i].size(); ++t) {
      const float* row = alone.data() + t * vocab;
      double sum = 0;
      for (size_t v = 0; v < vocab; ++v) sum += std::exp(double{row[v]});
      EXPECT_NEAR(losses[i][t], std::log(sum) - row[texts[i][t]], 1e-3);
    }
  }
}

TEST_P(DecoderTest, CopiedSequenceContinuesIndependently) {
  const auto decoder = Make(DType::kF32);
  const std::vector<int32_t> prefix = Tokens(30, 1), one = Tokens(10, 2), two = Tokens(10, 3);
  auto first = *decoder->NewSequence(64), second = *decoder->NewSequence(48);
  ASSERT_TRUE(decoder->Prefill(*first, prefix, {}).ok());
  ASSERT_TRUE(decoder->CopySequence(*first, *second).ok());
  EXPECT_EQ(second->length(), 30);
  const auto vocab = static_cast<size_t>(decoder->vocab());
  std::vector<float> got(vocab);
  ASSERT_TRUE(decoder->Prefill(*first, one, absl::MakeSpan(got)).ok());
  ASSERT_TRUE(decoder->Prefill(*second, two, absl::MakeSpan(got)).ok());
  std::vector<int32_t> text = prefix;
  text.insert(text.end(), two.begin(), two.end());
  const std::vector<float> alone = PrefillLogits(*decoder, text);
  EXPECT_LT(RelativeError(got, absl::MakeConstSpan(alone).subspan(39 * vocab)), 1e-5);
}

// The late device: its queue runs behind the calls, and its memory faults under the host's hand.
class LateDecodeDevice : public DecodeDevice {
 public:
  Device device() override { return {late_->backend(), late_->gemm(), late_->ops()}; }
  absl::StatusOr<double> CopySpeed(int64_t) override { return 1.0; }

 private:
  std::unique_ptr<LateDevice> late_ = *LateDevice::Create({});
};

TEST_P(DecoderTest, ADeviceWhoseMemoryIsNotTheHostsGivesTheSameLogitsAndLosses) {
  const DecoderOptions options = {
      .precision = DType::kF32, .threads = 1, .max_sequence = 128, .pass_tokens = 32};
  const std::unique_ptr<Decoder> host = MustCreate(weights, options);
  auto made = Decoder::Create(weights, std::make_unique<LateDecodeDevice>(), options);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::unique_ptr<Decoder> late = *std::move(made);
  const std::vector<int32_t> tokens = Tokens(90);
  std::vector<float> logits[2], losses[2];
  for (Decoder* decoder : {host.get(), late.get()}) {
    const size_t which = decoder == late.get();
    logits[which] = PiecemealLogits(*decoder, tokens, {40, 1, 7});
    // A copy continues where the original stopped.
    auto first = *decoder->NewSequence(128), second = *decoder->NewSequence(100);
    ASSERT_TRUE(decoder->Prefill(*first, absl::MakeConstSpan(tokens).first(50), {}).ok());
    const absl::Status copied = decoder->CopySequence(*first, *second);
    ASSERT_TRUE(copied.ok()) << copied;
    std::vector<float> last(static_cast<size_t>(decoder->vocab()));
    ASSERT_TRUE(decoder->Step(*second, tokens[50], absl::MakeSpan(last)).ok());
    logits[which].insert(logits[which].end(), last.begin(), last.end());
    // Losses of a fresh sequence.
    auto whole = *decoder->NewSequence(128);
    losses[which].resize(tokens.size());
    std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
    targets.push_back(-1);
    const Decoder::Piece piece = {whole.get(), tokens};
    const absl::Span<const int32_t> of_piece = targets;
    const absl::Span<float> into = absl::MakeSpan(losses[which]);
    const absl::Status status = decoder->Losses({&piece, 1}, {&of_piece, 1}, {&into, 1});
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_LT(RelativeError(logits[1], logits[0]), 1e-5);
  EXPECT_LT(RelativeError(losses[1], losses[0]), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Models, DecoderTest,
                         testing::Values("tiny-hybrid", "tiny-llama", "tiny-gpt2",
                                         "tiny-transformer", "odd-hybrid", "one-tap-hybrid"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Bad requests are refused before anything runs.
class DecoderErrors : public testing::Test {
 protected:
  TestWeights weights{*ModelPreset("tiny-gpt2")};  // 512 learned positions
  std::unique_ptr<Decoder> decoder =
      MustCreate(weights, {.precision = DType::kF32, .threads = 1, .max_sequence = 600});
};

TEST_F(DecoderErrors, TokenOutsideTheVocabularyIsNamed) {
  auto sequence = *decoder->NewSequence(20);
  const int32_t tokens[] = {1, 272, 2};
  absl::Status status = decoder->Prefill(*sequence, tokens, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("token 272 at position 1 is outside the vocabulary [0, 272)"));
  EXPECT_EQ(sequence->length(), 0);
  const int32_t negative[] = {-1};
  EXPECT_EQ(decoder->Prefill(*sequence, negative, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(DecoderErrors, ExceededCapacityIsNamed) {
  auto sequence = *decoder->NewSequence(4);
  const int32_t tokens[] = {1, 2, 3};
  ASSERT_TRUE(decoder->Prefill(*sequence, tokens, {}).ok());
  const absl::Status status = decoder->Prefill(*sequence, {tokens, 2}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a sequence of 3 tokens and 2 more exceeds its capacity, 4"));
  EXPECT_EQ(sequence->length(), 3);
}

TEST_F(DecoderErrors, ExceededLearnedPositionsAreNamed) {
  auto sequence = *decoder->NewSequence(600);
  const std::vector<int32_t> tokens(513, 1);
  const absl::Status status = decoder->Prefill(*sequence, tokens, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("exceeds its model's learned positions, 512"));
}

TEST_F(DecoderErrors, ForeignAndRepeatedSequencesAreRefused) {
  const auto other = MustCreate(weights, {.threads = 1, .max_sequence = 600});
  auto sequence = *decoder->NewSequence(8), foreign = *other->NewSequence(8);
  const int32_t token = 1;
  EXPECT_THAT(std::string(decoder->Prefill(*foreign, {&token, 1}, {}).message()),
              HasSubstr("belongs to another decoder"));
  const Decoder::Piece twice[] = {{sequence.get(), {&token, 1}}, {sequence.get(), {&token, 1}}};
  const absl::Status status =
      decoder->Run(twice, Decoder::Wanted::kNone,
                   [](absl::Span<const Decoder::Place>, float*) { return absl::OkStatus(); });
  EXPECT_THAT(std::string(status.message()), HasSubstr("an earlier piece has the same sequence"));
  EXPECT_EQ(decoder->CopySequence(*foreign, *sequence).code(), absl::StatusCode::kInvalidArgument);
  auto small = *decoder->NewSequence(1);
  const int32_t two[] = {1, 2};
  ASSERT_TRUE(decoder->Prefill(*sequence, two, {}).ok());
  EXPECT_EQ(decoder->CopySequence(*sequence, *small).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(DecoderErrors, OptionsAndBufferSizesAreChecked) {
  EXPECT_THAT(std::string(Decoder::Create(weights, {.max_sequence = 0}).status().message()),
              HasSubstr("max_sequence: 0 is not in [1, "));
  EXPECT_THAT(
      std::string(
          Decoder::Create(weights, {.max_sequence = 1, .pass_tokens = 0}).status().message()),
      HasSubstr("pass_tokens: 0 is not in [1, "));
  EXPECT_THAT(std::string(decoder->NewSequence(601).status().message()),
              HasSubstr("capacity: 601 is not in [1, 600]"));
  auto sequence = *decoder->NewSequence(8);
  const int32_t token = 1;
  std::vector<float> few(3);
  EXPECT_FALSE(decoder->Prefill(*sequence, {&token, 1}, absl::MakeSpan(few)).ok());
  EXPECT_FALSE(decoder->Prefill(*sequence, {}, absl::MakeSpan(few)).ok());
}

TEST_F(DecoderErrors, ErrorsOfTheSourceNameIt) {
  weights.Damage("blocks.0.attention.qkv.weight");
  const absl::Status status = Decoder::Create(weights, {.max_sequence = 8}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("test weights of tiny-gpt2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("blocks.0.attention.qkv.weight"));
}

}  // namespace
}  // namespace nibble
