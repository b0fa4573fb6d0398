#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "kernels/wrapped/wrapped_ops.h"
#include "worker/trainer/model/model.h"
#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

constexpr int64_t kSequences = 2;
constexpr int64_t kLength = 32;

ModelSpec Spec() {
  // Every linear dimension a multiple of 32, which MXFP4 wants.
  ModelSpec spec = HybridSpec();
  spec.mamba_state = 12;
  spec.mamba_heads = 16;
  spec.mamba_head_dim = 4;
  return spec;
}

Model::Options Options(DType dtype, bool recompute = false) {
  return {.activations = dtype, .sequences = kSequences, .length = kLength, .recompute = recompute};
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    norm += double{b[i]} * b[i];
  }
  return std::sqrt(difference / norm);
}

class EveryPrecision : public testing::TestWithParam<const char*> {
 protected:
  const TestBatch batch_{kSequences, kLength, Spec().vocab, 5};
};

TEST_P(EveryPrecision, RecomputeChangesNoBit) {
  TestRig kept(Spec(), GetParam(), Options(DType::kBf16));
  TestRig again(Spec(), GetParam(), Options(DType::kBf16, /*recompute=*/true));
  EXPECT_EQ(kept.Step(batch_, batch_.context()), again.Step(batch_, batch_.context()));
  EXPECT_EQ(kept.Gradients(), again.Gradients());
  EXPECT_LT(again.model->activation_bytes(), kept.model->activation_bytes());
}

// A backend that computes the squared ReLU of what it quantises, as a card does.
class SquaringBackend : public WrappedBackend, private Passage {
 public:
  explicit SquaringBackend(const TestDevice& device)
      : WrappedBackend(*device.backend, *this), cpu_(*device.backend), ops_(*device.ops) {}

  bool QuantizesSquaredRelu() const override { return true; }
  absl::Status Quantize(const QuantizeRequest& request) override {
    if (!request.squared_relu) return cpu_.Quantize(request);
    ++squared;
    std::vector<uint16_t> out(static_cast<size_t>(request.x.rows * request.x.cols));
    const MutableMatrix matrix = MutableMatrix::OfBf16(out.data(), request.x.rows, request.x.cols);
    const absl::Status status =
        ops_.elementwise().Forward(ActivationForward{.in = request.x, .out = matrix});
    if (!status.ok()) return status;
    QuantizeRequest of_squares = request;
    of_squares.x = Const(matrix);
    of_squares.squared_relu = false;
    return cpu_.Quantize(of_squares);
  }

  int squared = 0;

 private:
  absl::Status Pass(const OpCost&, std::function<absl::Status()> operation) override {
    return operation();
  }

  CpuBackend& cpu_;
  CpuLayerOps& ops_;
};

TEST_P(EveryPrecision, SquaredReluWithinTheQuantiserChangesNoBit) {
  for (const bool recompute : {false, true}) {
    TestRig apart(Spec(), GetParam(), Options(DType::kBf16, recompute));
    TestRig within(Spec(), GetParam(), Options(DType::kBf16, recompute));
    SquaringBackend squaring(within.device);
    within.model = *Model::Create({squaring, *within.device.gemm, *within.device.ops},
                                  *within.parameters, ResolvedPreset(within.outline, GetParam()),
                                  Options(DType::kBf16, recompute));
    EXPECT_EQ(apart.Step(batch_, batch_.context()), within.Step(batch_, batch_.context()));
    EXPECT_EQ(apart.Gradients(), within.Gradients());
    // Once for each MLP whose input is only read quantised, and once more where a block runs again:
    // all but the last.
    int expected = 0;
    for (const Linear* linear : within.model->linears()) {
      if (linear->info().name.find("mlp.down") == std::string::npos) continue;
      const LayerRecipe& recipe = linear->recipe();
      if (!recipe[OperandRole::kFpropActivation] || !recipe[OperandRole::kWgradActivation])
        continue;
      expected += recompute && linear != within.model->linears().back() ? 2 : 1;
    }
    EXPECT_EQ(squaring.squared, expected) << GetParam();
    within.model.reset();
  }
}

TEST_P(EveryPrecision, ThreadsChangeNoBit) {
  TestRig one(Spec(), GetParam(), Options(DType::kBf16), 1);
  TestRig three(Spec(), GetParam(), Options(DType::kBf16), 3);
  EXPECT_EQ(one.Step(batch_, batch_.context()), three.Step(batch_, batch_.context()));
  EXPECT_EQ(one.Gradients(), three.Gradients());
}

TEST_P(EveryPrecision, StatisticsChangeNoBit) {
  TestRig off(Spec(), GetParam(), Options(DType::kBf16));
  TestRig on(Spec(), GetParam(), Options(DType::kBf16));
  StepContext sampled = batch_.context();
  sampled.statistics = true;
  EXPECT_EQ(off.Step(batch_, batch_.context()), on.Step(batch_, sampled));
  EXPECT_EQ(off.Gradients(), on.Gradients());
}

TEST_P(EveryPrecision, ChangingTheRecipeAndBackChangesNoBit) {
  TestRig stayed(Spec(), GetParam(), Options(DType::kBf16));
  TestRig changed(Spec(), GetParam(), Options(DType::kBf16));
  const ResolvedRecipe own = ResolvedPreset(changed.outline, GetParam());
  ASSERT_TRUE(changed.model->SetRecipe(ResolvedPreset(changed.outline, "mxfp8")).ok());
  changed.Step(batch_, batch_.context());
  ASSERT_TRUE(changed.model->SetRecipe(own).ok());
  EXPECT_EQ(stayed.Step(batch_, batch_.context()), changed.Step(batch_, batch_.context()));
  EXPECT_EQ(stayed.Gradients(), changed.Gradients());
}

INSTANTIATE_TEST_SUITE_P(Presets, EveryPrecision,
                         testing::Values("bf16", "nvfp4", "nvfp4-base", "mxfp4", "mxfp8",
                                         "fp4-zhou-token"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::erase(name, '-');
                           return name;
                         });

// A wrong scale, a transform on one operand only or a lost tensor scale would leave an error of the
// gradient's own size, or put formats out of order.
TEST(Model, FewerBitsHaveALargerGradientError) {
  const TestBatch batch(kSequences, kLength, Spec().vocab, 5);
  TestRig exact(Spec(), "bf16", Options(DType::kF32));
  const double loss = exact.Step(batch, batch.context());
  double last = 0;
  for (const char* preset : {"bf16", "mxfp8", "nvfp4-base"}) {
    TestRig rounded(Spec(), preset, Options(DType::kBf16));
    EXPECT_NEAR(rounded.Step(batch, batch.context()) / loss, 1.0, 0.05) << preset;
    const double distance = Distance(rounded.Gradients(), exact.Gradients());
    EXPECT_GT(distance, 2 * last) << preset;
    last = distance;
  }
  EXPECT_LT(last, 0.75);
}

TEST(Model, MicroBatchesAddUpToTheBatch) {
  const ModelSpec spec = Spec();
  const TestBatch whole(2, kLength, spec.vocab, 9);
  TestRig together(spec, "bf16", {.activations = DType::kF32, .sequences = 2, .length = kLength});
  TestRig apart(spec, "bf16", {.activations = DType::kF32, .sequences = 1, .length = kLength});
  together.Step(whole, whole.context());

  StepContext context = whole.context();
  context.layout.sequences = 1;
  ASSERT_TRUE(apart.model->BeginStep(context).ok());
  std::vector<float> loss(kLength);
  for (int64_t s = 0; s < 2; ++s) {
    context.new_gradients = s == 0;
    context.first_token = s * kLength;
    context.layout.doc_begin = whole.doc_begin.data() + s * kLength;
    const ModelBatch batch = {.tokens = whole.tokens.data() + s * kLength,
                              .targets = whole.targets.data() + s * kLength};
    ASSERT_TRUE(apart.model->Forward(context, batch, 1.0f, loss.data()).ok());
    ASSERT_TRUE(apart.model->Backward(context, batch).ok());
  }
  EXPECT_LT(Distance(apart.Gradients(), together.Gradients()), 1e-5);
}

// The draws belong to the rows, wherever a row is processed.
TEST(Model, StochasticRoundingDoesNotDependOnTheDivisionOfTheBatch) {
  const ModelSpec spec = Spec();
  const TestBatch batch(1, kLength, spec.vocab, 9);
  const Model::Options options = {.activations = DType::kBf16, .sequences = 1, .length = kLength};
  TestRig first(spec, "nvfp4", options);
  TestRig second(spec, "nvfp4", options);
  StepContext context = batch.context();
  context.batch_tokens = 4 * kLength;
  context.first_token = 2 * kLength;
  first.Step(batch, context);
  second.Step(batch, context);
  EXPECT_EQ(first.Gradients(), second.Gradients());
  context.first_token = 3 * kLength;
  second.Step(batch, context);
  EXPECT_NE(first.Gradients(), second.Gradients());
}

TEST(Model, EveryQuantisedOperandReportsItsFigures) {
  const TestBatch batch(kSequences, kLength, Spec().vocab, 5);
  TestRig rig(Spec(), "nvfp4-base", Options(DType::kBf16));
  StepContext context = batch.context();
  context.statistics = true;
  rig.Step(batch, context);
  const std::vector<OperandFigures> figures = *rig.model->ReadFigures();
  // Six operands a layer.
  ASSERT_EQ(figures.size(), 6 * rig.outline.linears.size());
  for (const OperandFigures& f : figures) {
    const std::string name =
        rig.outline.linears[f.linear].name + " " + std::string(OperandRoleName(f.role));
    EXPECT_EQ(f.head.non_finite, 0u) << name;
    EXPECT_GT(f.head.amax, 0.0f) << name;
    EXPECT_GT(f.elements, 0) << name;
  }
}

TEST(Model, NanIsCountedInTheOperandWhereItAppears) {
  const TestBatch batch(kSequences, kLength, Spec().vocab, 5);
  TestRig rig(Spec(), "nvfp4-base", Options(DType::kBf16));
  const absl::StatusOr<int64_t> bad = FindBlockParam(rig.outline, 3, "mlp.up.weight");
  ASSERT_TRUE(bad.ok());
  rig.parameters->weight(*bad)[17] = std::numeric_limits<float>::quiet_NaN();
  rig.Step(batch, batch.context());
  const std::vector<OperandFigures> figures = *rig.model->ReadFigures();
  for (const OperandFigures& f : figures) {
    const LinearInfo& linear = rig.outline.linears[f.linear];
    const bool forward =
        f.role == OperandRole::kFpropActivation || f.role == OperandRole::kFpropWeight;
    if (!forward) continue;
    if (linear.name == "blocks.3.mlp.up" && f.role == OperandRole::kFpropWeight) {
      EXPECT_EQ(f.head.non_finite, 1u);
    } else if (linear.block < 3) {
      EXPECT_EQ(f.head.non_finite, 0u) << linear.name;
    }
  }
}

TEST(Model, Fp32RefusesAQuantisedRecipeByLayerAndOperand) {
  const ModelSpec spec = Spec();
  TestDevice device(1);
  const Outline outline = *MakeOutline(spec);
  const std::unique_ptr<Parameters> parameters = *Parameters::Create(device.device(), outline, 1);
  const absl::Status status =
      Model::Create(device.device(), *parameters, ResolvedPreset(outline, "nvfp4-base"),
                    Options(DType::kF32))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("blocks.0.mamba.in_proj"), absl::string_view::npos) << status;
  EXPECT_NE(status.message().find("fprop.activation"), absl::string_view::npos) << status;
}

TEST(Model, MicroBatchOfAnotherShapeIsRefused) {
  TestRig rig(Spec(), "bf16", Options(DType::kBf16));
  const TestBatch batch(kSequences + 1, kLength, Spec().vocab, 5);
  std::vector<float> loss(batch.tokens.size());
  const StepContext context = batch.context();
  ASSERT_TRUE(rig.model->BeginStep(context).ok());
  EXPECT_EQ(rig.model->Evaluate(context, batch.view(), loss.data()).code(),
            absl::StatusCode::kInvalidArgument);
}

// Gradients of whole models in FP32 against differences of the loss.

class Gradients : public testing::TestWithParam<ModelSpec> {};

// The slope of the loss along a direction of one parameter, from four points, which leaves an error
// of the fourth order in h.
double Slope(TestRig& rig, const TestBatch& batch, float* weight,
             const std::vector<float>& direction, double h) {
  const std::vector<float> origin(weight, weight + direction.size());
  const auto at = [&](double t) {
    for (size_t i = 0; i < origin.size(); ++i) {
      weight[i] = static_cast<float>(origin[i] + t * direction[i]);
    }
    return rig.Loss(batch);
  };
  const double near = at(h) - at(-h);
  const double far = at(2 * h) - at(-2 * h);
  std::copy(origin.begin(), origin.end(), weight);
  return (8 * near - far) / (12 * h);
}

TEST_P(Gradients, MatchDifferencesOfTheLossForEveryParameter) {
  const ModelSpec spec = GetParam();
  TestRig rig(spec, "bf16",
              {.activations = DType::kF32, .sequences = 2, .length = 24, .recompute = false});
  // The paths through biases and decays count only where they are not at their resting place.
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal(0.0f, 0.1f);
  for (int64_t i = 0; i < rig.parameters->elements(); ++i) {
    rig.parameters->weights()[i] += normal(random);
  }
  const TestBatch batch(2, 24, spec.vocab, 5);
  rig.Step(batch, batch.context());
  const std::vector<float> gradients = rig.Gradients();
  for (size_t p = 0; p < rig.outline.params.size(); ++p) {
    const ParamInfo& param = rig.outline.params[p];
    const auto index = static_cast<int64_t>(p);
    const float* gradient = gradients.data() + rig.parameters->offset(index);
    const int64_t n = param.elements();
    double norm = 0;
    for (int64_t i = 0; i < n; ++i) norm += double{gradient[i]} * gradient[i];
    norm = std::sqrt(norm);
    ASSERT_GT(norm, 0) << param.name;
    // Along the gradient, and along it with a random half of its elements scaled down: an error in
    // any part of the tensor shows in the second even if it does not in the first.
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<float> direction(n);
      double expected = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double scale = turn == 0 ? 1.0 : (random() % 2 == 0 ? 1.0 : 0.25);
        direction[i] = static_cast<float>(scale * gradient[i] / norm);
        expected += double{direction[i]} * gradient[i];
      }
      // Wide enough that the loss moves by far more than FP32 rounds it.
      const double h = std::clamp(0.03 / norm, 4e-3, 0.1);
      const double slope = Slope(rig, batch, rig.parameters->weight(index), direction, h);
      EXPECT_NEAR(slope / expected, 1.0, 1e-3) << param.name << ": |gradient| = " << norm;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Gradients, testing::Values(HybridSpec(), LlamaSpec(), Gpt2Spec()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace nibble
