// Gradients of whole models in FP32 against differences of the loss.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "worker/trainer/model/model_testing.h"

namespace nibble {
namespace {

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
    // Along the gradient itself, and along it with half of its elements turned by chance: an error
    // in any part of the tensor shows in the second where it does not in the first.
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
