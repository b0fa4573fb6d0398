#include "model/model_spec.h"

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace nibble {
namespace {

ModelSpec Preset(const char* name) { return ModelPreset(name).value(); }

struct Refusal {
  const char* what;
  std::function<void(ModelSpec&)> change;
  const char* message;
};

void ExpectRefusals(const ModelSpec& good, const std::vector<Refusal>& refusals) {
  ASSERT_TRUE(Validate(good).ok()) << Validate(good);
  for (const Refusal& refusal : refusals) {
    ModelSpec spec = good;
    refusal.change(spec);
    const absl::Status status = Validate(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.what;
    EXPECT_EQ(std::string(status.message()), refusal.message) << refusal.what;
  }
}

TEST(ModelSpecTest, ModelErrorsNameFieldValueAndBound) {
  ExpectRefusals(
      Preset("tiny-gpt2"),
      {{"no blocks", [](ModelSpec& s) { s.pattern = ""; },
        "pattern: 0 blocks are not in [1, 4096]"},
       {"too many blocks", [](ModelSpec& s) { s.pattern = std::string(4097, '*'); },
        "pattern: 4097 blocks are not in [1, 4096]"},
       {"unknown mixer", [](ModelSpec& s) { s.pattern = "*-*E"; },
        "pattern: 'E' at 3 is not one of * (attention), - (mlp), M (mamba)"},
       {"unprintable mixer", [](ModelSpec& s) { s.pattern = "\n"; },
        "pattern: '\\n' at 0 is not one of * (attention), - (mlp), M (mamba)"},
       {"vocab", [](ModelSpec& s) { s.vocab = 0; }, "vocab: 0 is not in [1, 16777216]"},
       {"large vocab", [](ModelSpec& s) { s.vocab = 16777217; },
        "vocab: 16777217 is not in [1, 16777216]"},
       {"d_model", [](ModelSpec& s) { s.d_model = -128; }, "d_model: -128 is not in [1, 1048576]"},
       {"positions", [](ModelSpec& s) { s.max_positions = 0; },
        "max_positions: 0 is not in [1, 16777216]"},
       {"norm_eps", [](ModelSpec& s) { s.norm_eps = 0; }, "norm_eps: 0 is not in [1e-12, 1]"},
       {"init_std", [](ModelSpec& s) { s.init_std = std::nan(""); },
        "init_std: nan is not in [1e-09, 10]"}});
}

TEST(ModelSpecTest, AttentionErrorsNameFieldValueAndBound) {
  ExpectRefusals(
      Preset("tiny-transformer"),
      {{"heads", [](ModelSpec& s) { s.heads = 0; }, "heads: 0 is not in [1, 1048576]"},
       {"kv_heads", [](ModelSpec& s) { s.kv_heads = 0; }, "kv_heads: 0 is not in [1, 1048576]"},
       {"kv_heads that do not divide", [](ModelSpec& s) { s.kv_heads = 3; },
        "kv_heads: 3 does not divide heads, which is 4"},
       {"more kv_heads than heads", [](ModelSpec& s) { s.kv_heads = 8; },
        "kv_heads: 8 does not divide heads, which is 4"},
       {"head_dim", [](ModelSpec& s) { s.head_dim = 0; }, "head_dim: 0 is not in [1, 1048576]"},
       {"odd head_dim", [](ModelSpec& s) { s.head_dim = 31; },
        "head_dim: 31 is odd; rope rotates pairs, so it must be even"},
       {"wide attention", [](ModelSpec& s) { s.head_dim = 1 << 19; },
        "heads: 4 times head_dim, 524288, is over 1048576"},
       {"rope_theta", [](ModelSpec& s) { s.rope_theta = INFINITY; },
        "rope_theta: inf is not in [1, 1e+12]"}});
}

TEST(ModelSpecTest, MlpErrorsNameFieldValueAndBound) {
  ExpectRefusals(Preset("tiny-llama"),
                 {{"d_ff", [](ModelSpec& s) { s.d_ff = 0; }, "d_ff: 0 is not in [1, 1048576]"}});
}

TEST(ModelSpecTest, MambaErrorsNameFieldValueAndBound) {
  ExpectRefusals(
      Preset("nemotron-h-8b"),
      {{"heads", [](ModelSpec& s) { s.mamba_heads = 0; }, "mamba_heads: 0 is not in [1, 1048576]"},
       {"head_dim", [](ModelSpec& s) { s.mamba_head_dim = 0; },
        "mamba_head_dim: 0 is not in [1, 1048576]"},
       {"groups", [](ModelSpec& s) { s.mamba_groups = 0; },
        "mamba_groups: 0 is not in [1, 1048576]"},
       {"groups that do not divide", [](ModelSpec& s) { s.mamba_groups = 24; },
        "mamba_groups: 24 does not divide mamba_heads, which is 128"},
       {"state", [](ModelSpec& s) { s.mamba_state = 0; }, "mamba_state: 0 is not in [1, 1048576]"},
       {"convolution", [](ModelSpec& s) { s.conv_width = 0; }, "conv_width: 0 is not in [1, 16]"},
       {"wide convolution", [](ModelSpec& s) { s.conv_width = 32; },
        "conv_width: 32 is not in [1, 16]"},
       {"chunk", [](ModelSpec& s) { s.chunk = 2048; }, "chunk: 2048 is not in [1, 1024]"},
       {"wide heads", [](ModelSpec& s) { s.mamba_head_dim = 8193; },
        "mamba_heads: 128 times mamba_head_dim, 8193, is over 1048576"},
       {"wide states", [](ModelSpec& s) { s.mamba_state = 131073; },
        "mamba_groups: 8 times mamba_state, 131073, is over 1048576"}});
}

TEST(ModelSpecTest, SizesOfMixersOutsideThePatternAreIgnored) {
  ModelSpec spec = Preset("tiny-hybrid");
  spec.pattern = std::string(1, 'M');
  spec.heads = spec.kv_heads = spec.head_dim = spec.d_ff = 0;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  spec = Preset("tiny-hybrid");
  spec.pattern = std::string(1, '-');
  spec.mamba_heads = spec.mamba_groups = spec.conv_width = spec.chunk = 0;
  spec.heads = spec.kv_heads = spec.head_dim = 0;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
}

TEST(ModelSpecTest, OddHeadDimIsValidWithoutRope) {
  ModelSpec spec = Preset("tiny-transformer");
  spec.head_dim = 31;
  spec.positions = Positions::kNone;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
}

TEST(ModelSpecTest, SameShapesAreAcceptedAndDifferentOnesNameTheField) {
  const ModelSpec ours = Preset("tiny-hybrid");
  ModelSpec theirs = ours;
  theirs.name = "other";
  theirs.norm_eps *= 2;
  theirs.init_std *= 2;
  theirs.chunk *= 2;
  EXPECT_TRUE(CheckSameShapes(ours, theirs, "base-1").ok());
  theirs.d_model *= 2;
  const absl::Status wider = CheckSameShapes(ours, theirs, "base-1");
  EXPECT_EQ(wider.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(wider.message(), absl::StrCat("model.d_model: ", ours.d_model, ", but ", theirs.d_model,
                                          " in the model of base-1, whose weights init_from names; "
                                          "shapes must be the same"));
  for (int64_t ModelSpec::*const size :
       {&ModelSpec::vocab, &ModelSpec::d_ff, &ModelSpec::heads, &ModelSpec::kv_heads,
        &ModelSpec::head_dim, &ModelSpec::mamba_heads, &ModelSpec::mamba_state,
        &ModelSpec::conv_width}) {
    theirs = ours;
    theirs.*size += 1;
    EXPECT_FALSE(CheckSameShapes(ours, theirs, "base-1").ok());
  }
  // Fields that the pattern does not use are ignored.
  ModelSpec small = Preset("tiny-transformer");
  theirs = small;
  theirs.mamba_heads += 1;
  theirs.max_positions += 1;
  EXPECT_EQ(CheckSameShapes(small, theirs, "base-1").ok(), small.positions != Positions::kLearned);
}

TEST(ModelSpecTest, EnumNamesMatchJobSpecs) {
  EXPECT_EQ(NormKindName(NormKind::kRmsNorm), "rmsnorm");
  EXPECT_EQ(NormKindName(NormKind::kLayerNorm), "layernorm");
  EXPECT_EQ(ActivationName(Activation::kSquaredRelu), "relu2");
  EXPECT_EQ(ActivationName(Activation::kGelu), "gelu");
  EXPECT_EQ(ActivationName(Activation::kSwiglu), "swiglu");
  EXPECT_EQ(PositionsName(Positions::kNone), "none");
  EXPECT_EQ(PositionsName(Positions::kRope), "rope");
  EXPECT_EQ(PositionsName(Positions::kLearned), "learned");
}

}  // namespace
}  // namespace nibble
