#include "model/outline.h"

#include <cmath>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/model_spec.h"
#include "model/outline_testing.h"

namespace nibble {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;
using Shape = std::vector<int64_t>;

Outline OutlineOf(const ModelSpec& spec) { return MakeOutline(spec).value(); }
Outline OutlineOf(const std::string& name) { return OutlineOf(ModelPreset(name).value()); }

const ParamInfo& ParamOf(const Outline& outline, const char* name) {
  return outline.params[static_cast<size_t>(outline.Find(name).value())];
}

std::vector<std::pair<std::string, Shape>> Shapes(const Outline& outline) {
  std::vector<std::pair<std::string, Shape>> shapes;
  for (const ParamInfo& param : outline.params) shapes.emplace_back(param.name, param.shape);
  return shapes;
}

TEST(OutlineTest, ParametersAreInForwardOrder) {
  EXPECT_THAT(
      Shapes(OutlineOf(HandModel())),
      ElementsAre(
          std::pair("embedding.weight", Shape{10, 8}), std::pair("blocks.0.norm.weight", Shape{8}),
          std::pair("blocks.0.mamba.in_proj.weight", Shape{24, 8}),
          std::pair("blocks.0.mamba.conv.weight", Shape{16, 4}),
          std::pair("blocks.0.mamba.conv.bias", Shape{16}),
          std::pair("blocks.0.mamba.dt_bias", Shape{2}),
          std::pair("blocks.0.mamba.A_log", Shape{2}), std::pair("blocks.0.mamba.D", Shape{2}),
          std::pair("blocks.0.mamba.norm.weight", Shape{6}),
          std::pair("blocks.0.mamba.out_proj.weight", Shape{8, 6}),
          std::pair("blocks.1.norm.weight", Shape{8}),
          std::pair("blocks.1.attention.qkv.weight", Shape{16, 8}),
          std::pair("blocks.1.attention.out.weight", Shape{8, 8}),
          std::pair("blocks.2.norm.weight", Shape{8}),
          std::pair("blocks.2.mlp.up.weight", Shape{16, 8}),
          std::pair("blocks.2.mlp.down.weight", Shape{8, 16}),
          std::pair("final_norm.weight", Shape{8}), std::pair("head.weight", Shape{10, 8})));
}

TEST(OutlineTest, LayerNormBiasesLearnedPositionsAndTiedHeadChangeTheParameters) {
  ModelSpec spec = HandModel("-");
  spec.norm = NormKind::kLayerNorm;
  spec.positions = Positions::kLearned;
  spec.max_positions = 12;
  spec.biases = true;
  spec.tied_head = true;
  spec.activation = Activation::kSwiglu;
  EXPECT_THAT(
      Shapes(OutlineOf(spec)),
      ElementsAre(
          std::pair("embedding.weight", Shape{10, 8}), std::pair("positions.weight", Shape{12, 8}),
          std::pair("blocks.0.norm.weight", Shape{8}), std::pair("blocks.0.norm.bias", Shape{8}),
          std::pair("blocks.0.mlp.up.weight", Shape{32, 8}),
          std::pair("blocks.0.mlp.up.bias", Shape{32}),
          std::pair("blocks.0.mlp.down.weight", Shape{8, 16}),
          std::pair("blocks.0.mlp.down.bias", Shape{8}), std::pair("final_norm.weight", Shape{8}),
          std::pair("final_norm.bias", Shape{8})));
}

TEST(OutlineTest, LinearsHaveKindAndSizes) {
  std::vector<std::tuple<std::string, std::string, int64_t, int64_t, int64_t>> linears;
  for (const LinearInfo& linear : OutlineOf(HandModel()).linears) {
    linears.emplace_back(linear.name, linear.kind, linear.block, linear.in, linear.out);
  }
  EXPECT_THAT(linears, ElementsAre(std::tuple("blocks.0.mamba.in_proj", "mamba.in_proj", 0, 8, 24),
                                   std::tuple("blocks.0.mamba.out_proj", "mamba.out_proj", 0, 6, 8),
                                   std::tuple("blocks.1.attention.qkv", "attention.qkv", 1, 8, 16),
                                   std::tuple("blocks.1.attention.out", "attention.out", 1, 8, 8),
                                   std::tuple("blocks.2.mlp.up", "mlp.up", 2, 8, 16),
                                   std::tuple("blocks.2.mlp.down", "mlp.down", 2, 16, 8)));
}

TEST(OutlineTest, LinearsAndTheirWeightsReferToEachOther) {
  for (const std::string& name : ModelPresetNames()) {
    const Outline outline = OutlineOf(name);
    int64_t weights = 0;
    for (const ParamInfo& param : outline.params) weights += param.linear >= 0;
    EXPECT_EQ(weights, outline.linears.size()) << name;
    for (size_t i = 0; i < outline.linears.size(); ++i) {
      const LinearInfo& linear = outline.linears[i];
      const ParamInfo& weight = outline.params[static_cast<size_t>(linear.weight)];
      EXPECT_EQ(weight.name, linear.name + ".weight");
      EXPECT_EQ(weight.shape, (Shape{linear.out, linear.in}));
      EXPECT_EQ(weight.linear, i);
      EXPECT_EQ(weight.block, linear.block);
      EXPECT_EQ(linear.bias, outline.spec.biases);
      if (linear.bias) {
        const ParamInfo& bias = outline.params[static_cast<size_t>(linear.weight) + 1];
        EXPECT_EQ(bias.name, linear.name + ".bias");
        EXPECT_EQ(bias.shape, Shape{linear.out});
      }
    }
  }
}

TEST(OutlineTest, NamesAreUniqueAndCanBeFound) {
  for (const std::string& preset : ModelPresetNames()) {
    const Outline outline = OutlineOf(preset);
    std::set<std::string> names;
    for (size_t i = 0; i < outline.params.size(); ++i) {
      EXPECT_TRUE(names.insert(outline.params[i].name).second) << outline.params[i].name;
      EXPECT_EQ(outline.Find(outline.params[i].name).value(), i);
    }
  }
  const absl::Status missing = OutlineOf(HandModel()).Find("blocks.3.norm.weight").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(missing.message()), "parameter: model hand has no 'blocks.3.norm.weight'");
}

TEST(OutlineTest, OnlyLinearsAndTablesDecay) {
  ModelSpec spec = HandModel();
  spec.norm = NormKind::kLayerNorm;
  spec.positions = Positions::kLearned;
  spec.max_positions = 12;
  spec.biases = true;
  std::vector<std::string> decayed;
  for (const ParamInfo& param : OutlineOf(spec).params) {
    if (param.decay) decayed.push_back(param.name);
  }
  EXPECT_THAT(decayed, UnorderedElementsAre(
                           "embedding.weight", "positions.weight", "blocks.0.mamba.in_proj.weight",
                           "blocks.0.mamba.out_proj.weight", "blocks.1.attention.qkv.weight",
                           "blocks.1.attention.out.weight", "blocks.2.mlp.up.weight",
                           "blocks.2.mlp.down.weight", "head.weight"));
}

TEST(OutlineTest, InitializationFollowsTheSpec) {
  ModelSpec spec = HandModel();
  spec.biases = true;
  spec.init_std = 0.03;
  const Outline outline = OutlineOf(spec);
  const std::vector<std::tuple<const char*, Init, double>> expected = {
      {"embedding.weight", Init::kNormal, 0.03},
      {"head.weight", Init::kNormal, 0.03},
      {"final_norm.weight", Init::kOnes, 0},
      {"blocks.0.norm.weight", Init::kOnes, 0},
      {"blocks.0.mamba.in_proj.weight", Init::kNormal, 0.03},
      {"blocks.0.mamba.in_proj.bias", Init::kZeros, 0},
      {"blocks.0.mamba.conv.weight", Init::kUniform, 0.5},
      {"blocks.0.mamba.conv.bias", Init::kZeros, 0},
      {"blocks.0.mamba.dt_bias", Init::kMambaDt, 0},
      {"blocks.0.mamba.A_log", Init::kMambaDecay, 0},
      {"blocks.0.mamba.D", Init::kOnes, 0},
      {"blocks.0.mamba.norm.weight", Init::kOnes, 0},
      {"blocks.1.attention.out.weight", Init::kNormal, 0.03},
  };
  for (const auto& [name, init, scale] : expected) {
    EXPECT_EQ(ParamOf(outline, name).init, init) << name;
    EXPECT_DOUBLE_EQ(ParamOf(outline, name).scale, scale) << name;
  }
}

TEST(OutlineTest, ScaleOutputInitScalesOutputProjections) {
  ModelSpec spec = HandModel();
  spec.scale_output_init = true;
  const Outline outline = OutlineOf(spec);
  const double smaller = 0.02 / std::sqrt(6.0);
  for (const LinearInfo& linear : outline.linears) {
    const bool output = linear.kind == "attention.out" || linear.kind == "mlp.down" ||
                        linear.kind == "mamba.out_proj";
    EXPECT_DOUBLE_EQ(outline.params[static_cast<size_t>(linear.weight)].scale,
                     output ? smaller : 0.02)
        << linear.name;
  }
  EXPECT_DOUBLE_EQ(ParamOf(outline, "head.weight").scale, 0.02);
}

TEST(OutlineTest, PartsAddUpToAllParameters) {
  const std::vector<PartCount> parts = ParametersByPart(OutlineOf(HandModel()));
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const PartCount& part : parts) counts.emplace_back(part.part, part.parameters);
  EXPECT_THAT(counts, ElementsAre(std::pair("embedding", 80), std::pair("attention", 192),
                                  std::pair("mlp", 256), std::pair("mamba", 332),
                                  std::pair("norms", 32), std::pair("head", 80)));
  for (const std::string& name : ModelPresetNames()) {
    const Outline outline = OutlineOf(name);
    int64_t sum = 0;
    for (const PartCount& part : ParametersByPart(outline)) sum += part.parameters;
    EXPECT_EQ(sum, outline.parameters()) << name;
  }
}

TEST(OutlineTest, LearnedPositionsCountAsEmbeddingAndTiedHeadAsZero) {
  const std::vector<PartCount> parts = ParametersByPart(OutlineOf("gpt2-125m"));
  EXPECT_EQ(parts.front().parameters, (50257 + 1024) * 768);
  EXPECT_EQ(parts.back().part, "head");
  EXPECT_EQ(parts.back().parameters, 0);
}

TEST(OutlineTest, InvalidSpecHasNoOutline) {
  const ModelSpec spec = HandModel("M*-+");
  const absl::StatusOr<Outline> outline = MakeOutline(spec);
  EXPECT_EQ(outline.status(), Validate(spec));
  EXPECT_EQ(outline.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FlopsTest, OneBlockOfEachMixerMatchesHandCount) {
  const FlopsPerToken flops = CountFlops(MakeOutline(HandModel()).value(), 6);
  // in_proj, out_proj; qkv, out; up, down.
  EXPECT_DOUBLE_EQ(flops.linears,
                   2 * (24 * 8 + 8 * 6) + 2 * (16 * 8 + 8 * 8) + 2 * (16 * 8 + 8 * 16));
  // Two matmuls of width 8 over 1, 2, … 6 keys.
  EXPECT_DOUBLE_EQ(flops.attention, 2 * 2 * 8 * (1 + 2 + 3 + 4 + 5 + 6) / 6.0);
  // Chunks of 4 and 2: tokens depend on 1, 2, 3, 4 and 1, 2 tokens of their own chunk.
  const double seen = (1 + 2 + 3 + 4 + 1 + 2) / 6.0;
  const double carried = 2 * 3 * 5;
  EXPECT_DOUBLE_EQ(flops.scan, 2 * 16 * 4                       // convolution
                                   + 2 * 5 * seen               // C·B
                                   + 2 * 6 * seen               // inside the chunk
                                   + 2 * carried + 2 * carried  // out of the state, into it
                                   + 2 * 6                      // D x
                                   + 2 * carried * 2 / 6.0);    // carried over two chunks
  EXPECT_DOUBLE_EQ(flops.head, 2 * 8 * 10);
  EXPECT_DOUBLE_EQ(flops.forward(), 1376 + 112 + (280 + 22 * seen) + 160);
  EXPECT_DOUBLE_EQ(flops.training(), 3 * flops.forward());
}

TEST(FlopsTest, SwigluProjectsUpTwice) {
  ModelSpec spec = HandModel("-");
  spec.activation = Activation::kSwiglu;
  EXPECT_DOUBLE_EQ(CountFlops(MakeOutline(spec).value(), 1).linears, 2 * (32 * 8 + 16 * 8));
}

TEST(FlopsTest, TiedHeadCostsTheSame) {
  ModelSpec spec = HandModel();
  spec.tied_head = true;
  EXPECT_DOUBLE_EQ(CountFlops(MakeOutline(spec).value(), 1).head, 2 * 8 * 10);
}

TEST(FlopsTest, AttentionGrowsWithTheSequenceAndTheScanDoesNot) {
  const Outline outline = MakeOutline(ModelPreset("nemotron-h-8b").value()).value();
  const FlopsPerToken shorter = CountFlops(outline, 4096);
  const FlopsPerToken longer = CountFlops(outline, 8192);
  EXPECT_DOUBLE_EQ(longer.attention / shorter.attention, 8193.0 / 4097.0);
  EXPECT_DOUBLE_EQ(longer.scan, shorter.scan);
  EXPECT_DOUBLE_EQ(longer.linears, shorter.linears);
}

TEST(FlopsTest, OneTokenAttendsOnlyToItself) {
  const FlopsPerToken flops = CountFlops(MakeOutline(HandModel()).value(), 1);
  EXPECT_DOUBLE_EQ(flops.attention, 2 * 2 * 8);
  EXPECT_DOUBLE_EQ(flops.scan, 128 + 10 + 12 + 60 + 60 + 12 + 60);
}

}  // namespace

}  // namespace nibble
