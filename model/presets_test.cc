#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "model/model_spec.h"
#include "model/outline.h"

namespace nibble {
namespace {

Outline PresetOutline(const std::string& name) {
  return MakeOutline(ModelPreset(name).value()).value();
}

int64_t ParametersOf(const char* name) { return PresetOutline(name).parameters(); }

TEST(PresetsTest, EveryPresetIsValidAndHasItsName) {
  ASSERT_EQ(ModelPresetNames().size(), 15);
  for (const std::string& name : ModelPresetNames()) {
    const absl::StatusOr<ModelSpec> spec = ModelPreset(name);
    ASSERT_TRUE(spec.ok()) << name;
    EXPECT_EQ(spec->name, name);
    EXPECT_TRUE(Validate(*spec).ok()) << name << ": " << Validate(*spec);
  }
}

TEST(PresetsTest, UnknownPresetIsNotFoundAndNamesTheNearest) {
  const absl::Status near = ModelPreset("nemotron-h-12").status();
  EXPECT_EQ(near.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(near.message()),
            "model: there is no preset 'nemotron-h-12'; the nearest is 'nemotron-h-12b'");
  const absl::Status far = ModelPreset("wombat").status();
  EXPECT_EQ(far.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(far.message()), "model: there is no preset 'wombat'");
}

TEST(PresetsTest, HybridPatternsMatchThePapers) {
  const std::string p12 = ModelPreset("nemotron-h-12b")->pattern;
  EXPECT_EQ(p12, "M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-");
  EXPECT_EQ(p12.size(), 62);
  EXPECT_EQ(std::count(p12.begin(), p12.end(), 'M'), 28);
  EXPECT_EQ(std::count(p12.begin(), p12.end(), '*'), 6);
  EXPECT_EQ(std::count(p12.begin(), p12.end(), '-'), 28);
  const std::string p8 = ModelPreset("nemotron-h-8b")->pattern;
  EXPECT_EQ(p8, "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-");
  EXPECT_EQ(p8.size(), 52);
  EXPECT_EQ(std::count(p8.begin(), p8.end(), 'M'), 24);
  EXPECT_EQ(std::count(p8.begin(), p8.end(), '*'), 4);
  EXPECT_EQ(std::count(p8.begin(), p8.end(), '-'), 24);
}

TEST(PresetsTest, HybridParameterCountsMatchTheReleasedModels) {
  EXPECT_NEAR(static_cast<double>(ParametersOf("nemotron-h-12b")), 12.31e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(ParametersOf("nemotron-h-8b")), 8.10e9, 0.005e9);
}

TEST(PresetsTest, Gpt2ParameterCountsMatchTheReleasedModelsExactly) {
  EXPECT_EQ(ParametersOf("gpt2-125m"), 124439808);
  EXPECT_EQ(ParametersOf("gpt2-335m"), 354823168);
  EXPECT_EQ(ParametersOf("gpt2-774m"), 774030080);
}

TEST(PresetsTest, LlamaParametersMatchHandCount) {
  // A layer of d 768, ff 3072: q, k, v, o; gate, up, down; two norms. Embedding and head are apart.
  EXPECT_EQ(ParametersOf("llama-125m"),
            12 * (4 * 768 * 768 + 3 * 768 * 3072 + 2 * 768) + 768 + 2 * 32000 * 768);
  EXPECT_EQ(ParametersOf("llama-125m"), 162417408);
  EXPECT_EQ(ParametersOf("llama-1b"),
            int64_t{48} * (4 * 1280 * 1280 + 3 * 1280 * 3392 + 2 * 1280) + 1280 + 2 * 32000 * 1280);
}

TEST(PresetsTest, TransformerParametersMatchHandCount) {
  EXPECT_EQ(ParametersOf("transformer-1.2b"),
            int64_t{20} * ((16 + 8 + 8 + 16) * 128 * 2048 + 2 * 2048 * 6144 + 2 * 2048) + 2048 +
                2 * 65536 * 2048);
}

TEST(PresetsTest, HybridOfABillionMatchesHandCount) {
  // Mamba-2: projections, convolution, heads, gated norm, norm. MLP and attention: linears, norm.
  const int64_t mamba = 2048 * (2 * 4096 + 2 * 8 * 128 + 64) + 4096 * 2048 +
                        5 * (4096 + 2 * 8 * 128) + 3 * 64 + 4096 + 2048;
  const int64_t mlp = 2 * 2048 * 8192 + 2048;
  const int64_t attention = 2048 * (16 + 2 * 4 + 16) * 128 + 2048;
  EXPECT_EQ(ParametersOf("hybrid-1b"),
            12 * mamba + 12 * mlp + 2 * attention + 2048 + 2 * int64_t{65536} * 2048);
}

TEST(PresetsTest, SmallModelsHaveSimilarSizesAndTinyOnesAreTiny) {
  const int64_t hybrid = ParametersOf("small-hybrid");
  const int64_t transformer = ParametersOf("small-transformer");
  EXPECT_GT(hybrid, 10000000);
  EXPECT_LT(hybrid, 30000000);
  EXPECT_NEAR(static_cast<double>(hybrid), static_cast<double>(transformer), 0.05 * hybrid);
  for (const char* name : {"tiny-hybrid", "tiny-transformer", "tiny-gpt2", "tiny-llama"}) {
    EXPECT_LT(ParametersOf(name), 1500000) << name;
  }
}

TEST(PresetsTest, DimensionsOfLinearsAreMultiplesOf32) {
  for (const std::string& name : ModelPresetNames()) {
    for (const LinearInfo& linear : PresetOutline(name).linears) {
      EXPECT_EQ(linear.in % 32, 0) << name << " " << linear.name;
      EXPECT_EQ(linear.out % 32, 0) << name << " " << linear.name;
    }
  }
}

TEST(PresetsTest, ByteModelsHaveMultiplesOf128AndAnEndOfDocument) {
  for (const std::string& name : ModelPresetNames()) {
    if (!name.starts_with("tiny-") && !name.starts_with("small-")) continue;
    const Outline outline = PresetOutline(name);
    EXPECT_GE(outline.spec.vocab, 257) << name;
    for (const LinearInfo& linear : outline.linears) {
      EXPECT_EQ(linear.in % 128, 0) << name << " " << linear.name;
      EXPECT_EQ(linear.out % 128, 0) << name << " " << linear.name;
    }
  }
}

}  // namespace
}  // namespace nibble
