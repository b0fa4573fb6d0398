#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/infer/generator.h"
#include "worker/infer/infer_testing.h"
#include "worker/trainer/data/data_testing.h"
#include "worker/trainer/data/sentencepiece.h"
#include "worker/trainer/data/tokenizer.h"
#include "worker/trainer/data/unicode.h"

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

TEST_F(GeneratorTest, GreedyAlwaysTakesTheLikeliestToken) {
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

TEST_F(GeneratorTest, SamplesDifferAndAreReproducibleBySeed) {
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

TEST_F(GeneratorTest, EndOfDocumentEndsASampleAndIsNotPartOfIt) {
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

TEST_F(GeneratorTest, InvalidRequestsAreRefusedBeforeAnythingRuns) {
  const auto message = [&](const GenerateOptions& options) {
    return std::string(Run(prompt, options).status().message());
  };
  EXPECT_THAT(message({.max_tokens = 46}),
              HasSubstr("a sequence of 65 tokens is over max_sequence, 64"));
  EXPECT_THAT(message({.max_tokens = std::numeric_limits<int64_t>::max()}),
              HasSubstr("tokens is over max_sequence, 64"));
  EXPECT_EQ(message({.max_tokens = 45}), "");
  EXPECT_THAT(message({.max_tokens = 0}), HasSubstr("max_tokens: 0 is below 1"));
  EXPECT_THAT(message({.max_tokens = 1, .samples = 0}), HasSubstr("samples: 0 is below 1"));
  EXPECT_THAT(message({.max_tokens = 1, .sampler = {.top_p = 2}}), HasSubstr("top_p: 2"));
  EXPECT_THAT(message({.max_tokens = 1, .vocabulary = 1000}), HasSubstr("vocabulary: 1000"));
  EXPECT_FALSE(Run({}, {.max_tokens = 1}).ok());
}

TEST_F(GeneratorTest, ErrorOfTheCallbackEndsTheRun) {
  const auto generated = Generate(*decoder, prompt, {.max_tokens = 8},
                                  [](int64_t, int32_t) { return absl::CancelledError("enough"); });
  EXPECT_EQ(generated.status().code(), absl::StatusCode::kCancelled);
}

TEST(PromptTokens, EmptyPromptBeginsADocument) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(*PromptTokens(tokenizer, ""), (std::vector<int32_t>{tokenizer.end_of_document()}));
  EXPECT_EQ(*PromptTokens(tokenizer, "ab"), (std::vector<int32_t>{'a', 'b'}));
}

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<int32_t> Kept(const std::vector<float>& logits, const SamplerOptions& options) {
  const auto candidates = Candidates(logits, options);
  EXPECT_TRUE(candidates.ok()) << candidates.status();
  std::vector<int32_t> tokens;
  double total = 0;
  for (const Candidate& candidate : *candidates) {
    tokens.push_back(candidate.token);
    total += candidate.share;
  }
  EXPECT_NEAR(total, 1, 1e-12);
  return tokens;
}

TEST(Sampler, TemperatureZeroTakesTheFirstOfTheLargest) {
  EXPECT_EQ(*Sample(std::vector<float>{1, 5, 2, 5}, {}, 0), 1);
  EXPECT_EQ(*Sample(std::vector<float>{-kInf, -3, -2}, {}, 9), 2);
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  // Chi-square with 9 degrees of freedom: one seed in a thousand exceeds 27.9.
  std::vector<float> logits;
  for (int i = 0; i < 10; ++i) logits.push_back(std::log(static_cast<float>(1 + i)));
  for (const double temperature : {1.0, 2.0}) {
    std::vector<double> expected;
    double total = 0;
    for (int i = 0; i < 10; ++i) {
      expected.push_back(std::pow(1.0 + i, 1 / temperature));
      total += expected.back();
    }
    constexpr int kDraws = 100000;
    std::vector<int> count(10);
    for (int i = 0; i < kDraws; ++i) {
      ++count[*Sample(logits, {.temperature = temperature, .seed = 12}, i)];
    }
    double chi_square = 0;
    for (int i = 0; i < 10; ++i) {
      const double mean = kDraws * expected[i] / total;
      chi_square += (count[i] - mean) * (count[i] - mean) / mean;
    }
    EXPECT_LT(chi_square, 27.9) << temperature;
  }
}

TEST(Sampler, TopKKeepsTheLargestAndBreaksTiesByToken) {
  const std::vector<float> logits = {1, 3, 2, 3, 2, 2};
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_k = 1}), (std::vector<int32_t>{1}));
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_k = 4}), (std::vector<int32_t>{1, 3, 2, 4}));
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_k = 100}).size(), 6u);
  EXPECT_EQ(Kept(logits, {.temperature = 1}).size(), 6u);
}

TEST(Sampler, TopPKeepsTheSmallestSetThatReachesIt) {
  // Shares 1/2, 1/4, 1/8, 1/8, exact in binary.
  const float ln2 = std::log(2.0f);
  const std::vector<float> logits = {-2 * ln2, 0, -2 * ln2, -ln2};
  const auto kept = [&](double p) { return Kept(logits, {.temperature = 1, .top_p = p}); };
  EXPECT_EQ(kept(0.01), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept(0.499), (std::vector<int32_t>{1}));
  EXPECT_EQ(kept(0.51), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(kept(0.76), (std::vector<int32_t>{1, 3, 0}));
  EXPECT_EQ(kept(0.9), (std::vector<int32_t>{1, 3, 0, 2}));
  EXPECT_EQ(kept(1), (std::vector<int32_t>{1, 3, 0, 2}));
}

TEST(Sampler, TopPAppliesToTheSharesAfterTopK) {
  const float ln2 = std::log(2.0f);
  // The first of the two candidates has 2/3.
  const std::vector<float> logits = {0, -ln2, -ln2, -ln2};
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_k = 2, .top_p = 0.65}).size(), 1u);
  EXPECT_EQ(Kept(logits, {.temperature = 1, .top_p = 0.65}).size(), 3u);
}

TEST(Sampler, LargeVocabularyIsKeptWithoutTopKAndTopP) {
  std::vector<float> logits(10000);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 97) * 0.01f;
  const std::vector<int32_t> kept = Kept(logits, {.temperature = 1});
  ASSERT_EQ(kept.size(), logits.size());
  for (size_t i = 1; i < kept.size(); ++i) {
    const float a = logits[kept[i - 1]], b = logits[kept[i]];
    ASSERT_TRUE(a > b || (a == b && kept[i - 1] < kept[i])) << i;
  }
}

TEST(Sampler, DrawIsAFunctionOfSeedStreamAndPosition) {
  EXPECT_EQ(SamplerUniform(1, 2, 3), SamplerUniform(1, 2, 3));
  EXPECT_NE(SamplerUniform(1, 2, 3), SamplerUniform(2, 2, 3));
  EXPECT_NE(SamplerUniform(1, 2, 3), SamplerUniform(1, 3, 3));
  EXPECT_NE(SamplerUniform(1, 2, 3), SamplerUniform(1, 2, 4));
  EXPECT_NE(SamplerUniform(1, 2, 3), SamplerUniform(1, 2, 3 + (uint64_t{1} << 32)));
}

TEST(Sampler, ImpossibleTokensAreNeverDrawn) {
  const std::vector<float> logits = {-kInf, 0, -1e30f};
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(*Sample(logits, {.temperature = 1}, i), 1);
}

TEST(Sampler, BadOptionsAndLogitsAreNamed) {
  const auto message = [](const absl::Status& status) { return std::string(status.message()); };
  EXPECT_THAT(message(Validate(SamplerOptions{.temperature = -1})), HasSubstr("temperature: -1"));
  EXPECT_FALSE(Validate(SamplerOptions{.temperature = std::nan("")}).ok());
  EXPECT_THAT(message(Validate(SamplerOptions{.top_k = -2})), HasSubstr("top_k: -2"));
  EXPECT_THAT(message(Validate(SamplerOptions{.top_p = 0})), HasSubstr("top_p: 0"));
  EXPECT_THAT(message(Validate(SamplerOptions{.top_p = 1.5})), HasSubstr("top_p: 1.5"));
  EXPECT_TRUE(Validate(SamplerOptions{.temperature = 0.7, .top_k = 40, .top_p = 0.9}).ok());
  EXPECT_FALSE(Sample({}, {}, 0).ok());
  for (const double temperature : {0.0, 1.0}) {
    const SamplerOptions options = {.temperature = temperature};
    EXPECT_THAT(message(Sample(std::vector<float>{0, NAN}, options, 0).status()),
                HasSubstr("token 1 is nan"));
    EXPECT_THAT(message(Sample(std::vector<float>{kInf, 0}, options, 0).status()),
                HasSubstr("token 0 is inf"));
    EXPECT_THAT(message(Sample(std::vector<float>{-kInf, -kInf}, options, 0).status()),
                HasSubstr("all tokens are -inf"));
  }
}

// Each piece returned; the last is from Finish.
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

TEST(TextStream, CharactersAreReturnedWhole) {
  const std::string text = "a\u00e9\u20ac\U0001f600z";
  const ByteTokenizer tokenizer;
  EXPECT_EQ(Pieces(tokenizer, {}, Encoded(tokenizer, text)),
            (std::vector<std::string>{"a", "", "\u00e9", "", "", "\u20ac", "", "", "", "\U0001f600",
                                      "z", ""}));
}

TEST(TextStream, InvalidBytesAreReplacedOneByOne) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(Joined(Pieces(tokenizer, {}, {0xff, 'a', 0xe2, 0x82, 'b', 0xc3})),
            "\ufffda\ufffd\ufffdb\ufffd");
}

TEST(TextStream, SubwordPiecesAddUpToTheText) {
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", TestModel());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = TestText(3, 40) + " \u4e2d\u6587 rare \U0001f600 end";
  const std::vector<int32_t> tokens = Encoded(**tokenizer, text);
  ASSERT_GT(tokens.size(), 300u);
  const auto whole = (*tokenizer)->Decode(tokens);
  ASSERT_TRUE(whole.ok());
  const std::vector<std::string> pieces = Pieces(**tokenizer, {}, tokens);
  EXPECT_EQ(Joined(pieces), *whole);
  for (const std::string& piece : pieces) {
    EXPECT_EQ(FindInvalidUtf8(piece), std::string_view::npos);
  }
}

TEST(TextStream, ContinuationKeepsTheSpaceAfterThePrompt) {
  const auto tokenizer = SentencePieceTokenizer::FromModel("test", TestModel());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text = "the moren the tali be no\nthe an\n";
  const std::vector<int32_t> tokens = Encoded(**tokenizer, text);
  const std::string whole = *(*tokenizer)->Decode(tokens);
  for (size_t cut = 1; cut < tokens.size(); ++cut) {
    const absl::Span<const int32_t> all = tokens;
    const std::string before = *(*tokenizer)->Decode(all.first(cut));
    EXPECT_EQ(before + Joined(Pieces(**tokenizer, all.first(cut), all.subspan(cut))), whole) << cut;
  }
}

TEST(TextStream, TokenOutsideTheVocabularyIsAnError) {
  const ByteTokenizer tokenizer;
  auto stream = TextStream::Create(tokenizer, {});
  ASSERT_TRUE(stream.ok());
  EXPECT_FALSE(stream->Add(300).ok());
  EXPECT_EQ(*stream->Add('a'), "a");
  EXPECT_FALSE(TextStream::Create(tokenizer, std::vector<int32_t>{-1}).ok());
}

}  // namespace
}  // namespace nibble
