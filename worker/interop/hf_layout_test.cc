#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "worker/interop/hf_layout.h"
#include "worker/interop/interop_testing.h"

namespace nibble {
namespace {

HfModelLayout LayoutOf(const ModelSpec& spec) {
  const absl::StatusOr<HfModelLayout> layout = HfLayout(*MakeOutline(spec));
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.ok() ? *layout : HfModelLayout();
}

const HfTensor* Find(const HfModelLayout& layout, const std::string& name) {
  for (const HfTensor& tensor : layout.tensors) {
    if (tensor.name == name) return &tensor;
  }
  ADD_FAILURE() << "no tensor " << name;
  return nullptr;
}

std::vector<std::string> NamesOf(const HfModelLayout& layout) {
  std::vector<std::string> names;
  for (const HfTensor& tensor : layout.tensors) names.push_back(tensor.name);
  return names;
}

TEST(HfLayout, EveryClassIsFoundByItsModel) {
  for (const ModelSpec& spec : ClassSpecs()) {
    EXPECT_EQ(Info(LayoutOf(spec).model_class).model_type, spec.name);
  }
}

TEST(HfLayout, EveryPresetHasAClass) {
  for (const std::string& name : ModelPresetNames()) {
    const std::string_view expected = name.find("gpt2") != std::string::npos    ? "gpt2"
                                      : name.find("llama") != std::string::npos ? "llama"
                                      : name.find("transformer") != std::string::npos
                                          ? "arcee"
                                          : "nemotron_h";
    EXPECT_EQ(Info(LayoutOf(*ModelPreset(name)).model_class).model_type, expected) << name;
  }
}

TEST(HfLayout, TensorsCoverEveryParameterOnceInOrder) {
  for (const ModelSpec& spec : ClassSpecs()) {
    const Outline outline = *MakeOutline(spec);
    const HfModelLayout layout = LayoutOf(spec);
    int64_t param = -1;
    int64_t next_row = 0;
    std::set<std::string> names;
    for (const HfTensor& tensor : layout.tensors) {
      if (tensor.param != param) {
        if (param >= 0) {
          EXPECT_EQ(next_row, outline.params[param].shape[0]) << tensor.name;
        }
        EXPECT_EQ(tensor.param, param + 1);
        param = tensor.param;
        next_row = 0;
      }
      EXPECT_EQ(tensor.first_row, next_row) << tensor.name;
      next_row += tensor.rows;
      const ParamInfo& info = outline.params[param];
      EXPECT_EQ(tensor.elements() * info.shape[0], tensor.rows * info.elements()) << tensor.name;
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
    }
    EXPECT_EQ(param + 1, static_cast<int64_t>(outline.params.size()));
  }
}

TEST(HfLayout, NamesOfAHybrid) {
  ModelSpec spec = ClassSpec("nemotron_h");
  spec.pattern = "M*-";
  EXPECT_EQ(NamesOf(LayoutOf(spec)),
            (std::vector<std::string>{"backbone.embeddings.weight",
                                      "backbone.layers.0.norm.weight",
                                      "backbone.layers.0.mixer.in_proj.weight",
                                      "backbone.layers.0.mixer.conv1d.weight",
                                      "backbone.layers.0.mixer.conv1d.bias",
                                      "backbone.layers.0.mixer.dt_bias",
                                      "backbone.layers.0.mixer.A_log",
                                      "backbone.layers.0.mixer.D",
                                      "backbone.layers.0.mixer.norm.weight",
                                      "backbone.layers.0.mixer.out_proj.weight",
                                      "backbone.layers.1.norm.weight",
                                      "backbone.layers.1.mixer.q_proj.weight",
                                      "backbone.layers.1.mixer.k_proj.weight",
                                      "backbone.layers.1.mixer.v_proj.weight",
                                      "backbone.layers.1.mixer.o_proj.weight",
                                      "backbone.layers.2.norm.weight",
                                      "backbone.layers.2.mixer.up_proj.weight",
                                      "backbone.layers.2.mixer.down_proj.weight",
                                      "backbone.norm_f.weight",
                                      "lm_head.weight"}));
}

TEST(HfLayout, QueriesKeysAndValuesAreRowsOfOneParameter) {
  // 4 heads and 2 key heads of 16.
  const HfModelLayout layout = LayoutOf(ClassSpec("llama"));
  const HfTensor* q = Find(layout, "model.layers.1.self_attn.q_proj.weight");
  const HfTensor* k = Find(layout, "model.layers.1.self_attn.k_proj.weight");
  const HfTensor* v = Find(layout, "model.layers.1.self_attn.v_proj.weight");
  ASSERT_TRUE(q && k && v);
  EXPECT_EQ(q->shape, (std::vector<int64_t>{64, 32}));
  EXPECT_EQ(k->shape, (std::vector<int64_t>{32, 32}));
  EXPECT_EQ(v->shape, (std::vector<int64_t>{32, 32}));
  EXPECT_EQ(q->param, v->param);
  EXPECT_EQ(k->first_row, 64);
  EXPECT_EQ(v->first_row, 96);
}

TEST(HfLayout, TheGateComesBeforeTheUpProjection) {
  const HfModelLayout layout = LayoutOf(ClassSpec("llama"));
  const HfTensor* gate = Find(layout, "model.layers.0.mlp.gate_proj.weight");
  const HfTensor* up = Find(layout, "model.layers.0.mlp.up_proj.weight");
  ASSERT_TRUE(gate && up);
  EXPECT_EQ(gate->param, up->param);
  EXPECT_EQ(gate->first_row, 0);
  EXPECT_EQ(up->first_row, 64);
}

TEST(HfLayout, Gpt2sLinearsAreTransposedAndItsTablesAreNot) {
  const HfModelLayout layout = LayoutOf(ClassSpec("gpt2"));
  const HfTensor* linear = Find(layout, "transformer.h.1.mlp.c_fc.weight");
  ASSERT_TRUE(linear);
  EXPECT_TRUE(linear->transposed);
  EXPECT_EQ(linear->shape, (std::vector<int64_t>{32, 80}));
  EXPECT_EQ(linear->rows, 80);
  const HfTensor* table = Find(layout, "transformer.wte.weight");
  ASSERT_TRUE(table);
  EXPECT_FALSE(table->transposed);
}

TEST(HfLayout, ATiedHeadHasNoTensor) {
  ModelSpec spec = ClassSpec("llama");
  EXPECT_EQ(NamesOf(LayoutOf(spec)).back(), "lm_head.weight");
  spec.tied_head = true;
  EXPECT_EQ(NamesOf(LayoutOf(spec)).back(), "model.norm.weight");
}

TEST(HfLayout, AModelOfNoClassIsRefusedWithEachClasssReason) {
  ModelSpec spec = ClassSpec("llama");
  spec.norm = NormKind::kLayerNorm;
  const absl::Status status = HfLayout(*MakeOutline(spec)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* reason :
       {"nemotron_h: activation is swiglu, not relu2", "llama: norm is layernorm, not rmsnorm",
        "arcee: activation is swiglu, not relu2", "gpt2: activation is swiglu, not gelu"}) {
    EXPECT_NE(status.message().find(reason), absl::string_view::npos) << status;
  }
}

TEST(HfLayout, AModelThatItsClassCannotRepresentIsRefused) {
  const auto refused = [](std::string_view model_type, auto change, const char* reason) {
    ModelSpec spec = ClassSpec(model_type);
    change(spec);
    const absl::Status status = HfLayout(*MakeOutline(spec)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << reason;
    EXPECT_NE(status.message().find(reason), absl::string_view::npos) << status;
  };
  refused(
      "llama", [](ModelSpec& s) { s.pattern = "*--*"; }, "pattern is not *- repeated");
  refused(
      "llama", [](ModelSpec& s) { s.d_model = 33; }, "d_model, 33, is not a multiple of heads");
  refused(
      "gpt2", [](ModelSpec& s) { s.kv_heads = 2; }, "kv_heads is 2, not heads, 4");
  refused(
      "gpt2", [](ModelSpec& s) { s.head_dim = 16; }, "heads · head_dim is 64, not d_model, 32");
  refused(
      "gpt2", [](ModelSpec& s) { s.biases = false; }, "gpt2: biases are false");
  refused(
      "nemotron_h", [](ModelSpec& s) { s.biases = true; }, "nemotron_h: biases are true");
  refused(
      "nemotron_h", [](ModelSpec& s) { s.tied_head = true; }, "tied_head is true");
  refused(
      "nemotron_h", [](ModelSpec& s) { s.positions = Positions::kRope; }, "positions is rope");
}

TEST(ElementCodec, EveryHalfIsDecodedAsTheCompilerDoes) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const auto expected = static_cast<float>(std::bit_cast<_Float16>(half));
    const float decoded = DecodeF16(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(decoded)) << bits;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(decoded), std::bit_cast<uint32_t>(expected)) << bits;
    }
  }
}

TEST(ElementCodec, Fp32IsReadBackBitForBit) {
  const std::vector<float> values = {0.0f, -0.0f, 1.5f, 0x1p-149f, INFINITY, 3.4e38f};
  std::vector<std::byte> bytes(1);  // makes the following bytes unaligned
  AppendElements(FileDType::kF32, values, bytes);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(DecodeElement(FileDType::kF32, bytes.data() + 1, i)),
              std::bit_cast<uint32_t>(values[i]));
  }
}

TEST(ElementCodec, Bf16IsRoundedToNearestEven) {
  std::vector<std::byte> bytes;
  // One, halfway to the next (down to even), halfway from there (up to even), just above halfway.
  AppendElements(FileDType::kBF16,
                 {1.0f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 1.0f + 0x1p-8f + 0x1p-20f}, bytes);
  const float expected[] = {1.0f, 1.0f, 1.0f + 2 * 0x1p-7f, 1.0f + 0x1p-7f};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(DecodeElement(FileDType::kBF16, bytes.data(), i), expected[i]) << i;
  }
}

TEST(ElementCodec, OtherTypesAreRefusedAsWeights) {
  int weights = 0;
  for (int i = 0; i < kFileDTypeCount; ++i) weights += IsWeightType(static_cast<FileDType>(i));
  EXPECT_EQ(weights, 3);
}

}  // namespace
}  // namespace nibble
