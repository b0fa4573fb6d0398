#include "model/memory.h"

#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "model/limits.h"
#include "model/model_spec.h"
#include "model/outline_testing.h"

namespace nibble {
namespace {

// 972 parameters, of which 688 are weights of linears.
Outline HandOutline() { return MakeOutline(HandModel()).value(); }

TEST(MemoryTest, WeightsAndOptimizerMatchHandCount) {
  const MemoryPerRank memory = EstimateMemory(HandOutline(), 1, 1).value();
  EXPECT_EQ(memory.master, 4 * 972);
  EXPECT_EQ(memory.moments, 8 * 972);
  EXPECT_EQ(memory.gradients, 4 * 972);
  EXPECT_EQ(memory.working_bf16, 2 * 972);
  EXPECT_EQ(memory.working_nvfp4, 2 * (972 - 688) + 688 / 2 + 688 / 16);
}

TEST(MemoryTest, OnlyMasterAndMomentsAreSharded) {
  const MemoryPerRank one = EstimateMemory(HandOutline(), 1, 10).value();
  const MemoryPerRank five = EstimateMemory(HandOutline(), 5, 10).value();
  EXPECT_EQ(five.master, 4 * 195);  // 972 / 5, rounded up
  EXPECT_EQ(five.moments, 8 * 195);
  EXPECT_EQ(five.gradients, one.gradients);
  EXPECT_EQ(five.working_bf16, one.working_bf16);
  EXPECT_EQ(five.working_nvfp4, one.working_nvfp4);
  EXPECT_EQ(five.activations_saved, one.activations_saved);
  EXPECT_EQ(five.activations_recomputed, one.activations_recomputed);
}

TEST(MemoryTest, ActivationsMatchHandCount) {
  const MemoryPerRank memory = EstimateMemory(HandOutline(), 1, 10).value();
  const int64_t norm = 2 * 8 + 4;
  const int64_t mamba = 2 * 24 + 2 * 16 + 2 * 6 + 2 * 6 + 4;
  const int64_t attention = 2 * 16 + 2 * 8 + 4 * 2;
  const int64_t mlp = 2 * 16 + 2 * 16;
  const int64_t inputs_and_ends = 3 * 2 * 8 + 2 * 8 + norm;
  EXPECT_EQ(memory.activations_saved, 10 * (inputs_and_ends + 3 * norm + mamba + attention + mlp));
  EXPECT_EQ(memory.activations_recomputed, 10 * (inputs_and_ends + norm + mamba));
}

TEST(MemoryTest, LayerNormAlsoSavesAMean) {
  ModelSpec spec = HandModel();
  spec.norm = NormKind::kLayerNorm;
  const MemoryPerRank layer = EstimateMemory(MakeOutline(spec).value(), 1, 1).value();
  const MemoryPerRank rms = EstimateMemory(HandOutline(), 1, 1).value();
  EXPECT_EQ(layer.activations_saved - rms.activations_saved, 4 * 4);
}

TEST(MemoryTest, TotalsFollowPackingAndRecompute) {
  const MemoryPerRank memory = EstimateMemory(HandOutline(), 2, 10).value();
  const int64_t fixed = memory.master + memory.moments + memory.gradients;
  EXPECT_EQ(memory.Total(false, false), fixed + memory.working_bf16 + memory.activations_saved);
  EXPECT_EQ(memory.Total(true, true), fixed + memory.working_nvfp4 + memory.activations_recomputed);
}

TEST(MemoryTest, LargestModelFitsIn64Bits) {
  constexpr int64_t kWidth = 1 << 20;
  ModelSpec spec = HandModel(std::string(4096, 'M'));
  spec.vocab = 1 << 24;
  spec.d_model = kWidth;
  spec.mamba_heads = kWidth;
  spec.mamba_head_dim = 1;
  spec.mamba_groups = 1;
  spec.mamba_state = kWidth;
  spec.conv_width = kMaxConvWidth;
  const Outline outline = MakeOutline(spec).value();
  double parameters = 0;
  for (const ParamInfo& param : outline.params) {
    double elements = 1;
    for (const int64_t size : param.shape) elements *= static_cast<double>(size);
    parameters += elements;
  }
  EXPECT_DOUBLE_EQ(static_cast<double>(outline.parameters()), parameters);
  const MemoryPerRank memory = EstimateMemory(outline, 1, 1 << 24).value();
  EXPECT_DOUBLE_EQ(static_cast<double>(memory.moments), 8 * parameters);
  EXPECT_DOUBLE_EQ(static_cast<double>(memory.Total(false, false)),
                   static_cast<double>(memory.master) + static_cast<double>(memory.moments) +
                       static_cast<double>(memory.gradients) +
                       static_cast<double>(memory.working_bf16) +
                       static_cast<double>(memory.activations_saved));
  EXPECT_GT(memory.activations_saved, int64_t{1} << 60);
  EXPECT_LT(CountFlops(outline, 1 << 24).training(), 9.2e18);
}

TEST(MemoryTest, ErrorsNameFieldValueAndBound) {
  const absl::Status ranks = EstimateMemory(HandOutline(), 0, 1).status();
  EXPECT_EQ(ranks.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(ranks.message()), "ranks: 0 is not in [1, 1048576]");
  const absl::Status tokens = EstimateMemory(HandOutline(), 1, (1 << 24) + 1).status();
  EXPECT_EQ(tokens.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(tokens.message()), "tokens: 16777217 is not in [1, 16777216]");
}

}  // namespace
}  // namespace nibble
