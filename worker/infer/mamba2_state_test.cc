#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/infer/decode_device.h"
#include "worker/infer/infer_testing.h"
#include "worker/infer/loaded_weights.h"
#include "worker/trainer/model/mixer.h"

namespace nibble {
namespace {

ModelSpec Spec() {
  return {.name = "mamba",
          .pattern = "M",
          .vocab = 16,
          .d_model = 24,
          .mamba_heads = 4,
          .mamba_head_dim = 20,
          .mamba_groups = 2,
          .mamba_state = 12,
          .init_std = 0.3};
}

double Softplus(double x) { return x > 30 ? x : std::log1p(std::exp(x)); }
double Silu(double x) { return x / (1 + std::exp(-x)); }

// Reference: the layer's formulas, token by token, in FP64.
class Reference {
 public:
  explicit Reference(TestWeights& weights) : weights_(weights), spec_(weights.outline().spec) {
    state.resize(spec_.d_inner() * spec_.mamba_state);
  }

  // x: [d_model]; the layer's output.
  std::vector<double> Step(const float* x) {
    const int64_t inner = spec_.d_inner(), conv = spec_.conv_dim(), dim = spec_.mamba_head_dim;
    const int64_t n = spec_.mamba_state, groups = spec_.mamba_groups, heads = spec_.mamba_heads;
    const std::vector<double> projected =
        Product("in_proj.weight", std::vector<double>(x, x + spec_.d_model));
    inputs.emplace_back(projected.begin() + inner, projected.begin() + inner + conv);
    std::vector<double> xbc(conv), y(inner);
    for (int64_t c = 0; c < conv; ++c) {
      double sum = P("conv.bias")[c];
      for (int64_t w = 0; w < spec_.conv_width; ++w) {
        const int64_t t = static_cast<int64_t>(inputs.size()) - spec_.conv_width + w;
        if (t >= 0) sum += P("conv.weight")[c * spec_.conv_width + w] * inputs[t][c];
      }
      xbc[c] = Silu(sum);
    }
    for (int64_t h = 0; h < heads; ++h) {
      const double delta = Softplus(projected[inner + conv + h] + P("dt_bias")[h]);
      const double decay = std::exp(-delta * std::exp(double{P("A_log")[h]}));
      const double* b = xbc.data() + inner + h / (heads / groups) * n;
      const double* c = b + groups * n;
      for (int64_t p = 0; p < dim; ++p) {
        const double value = xbc[h * dim + p];
        double sum = P("D")[h] * value;
        for (int64_t i = 0; i < n; ++i) {
          double& s = state[(h * n + i) * dim + p];
          s = decay * s + delta * value * b[i];
          sum += s * c[i];
        }
        y[h * dim + p] = sum * Silu(projected[h * dim + p]);
      }
    }
    const int64_t width = inner / groups;
    for (int64_t g = 0; g < groups; ++g) {
      double square = 0;
      for (int64_t i = 0; i < width; ++i) square += y[g * width + i] * y[g * width + i];
      const double rstd = 1 / std::sqrt(square / static_cast<double>(width) + spec_.norm_eps);
      for (int64_t i = 0; i < width; ++i) {
        y[g * width + i] *= rstd * P("norm.weight")[g * width + i];
      }
    }
    return Product("out_proj.weight", y);
  }

  std::vector<double> state;                // [heads, state, head_dim]
  std::vector<std::vector<double>> inputs;  // of the convolution, token by token

 private:
  const std::vector<float>& P(const std::string& name) {
    return weights_.values("blocks.0.mamba." + name);
  }
  std::vector<double> Product(const std::string& name, const std::vector<double>& x) {
    const std::vector<float>& w = P(name);
    std::vector<double> y(w.size() / x.size());
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t i = 0; i < x.size(); ++i) y[o] += double{w[o * x.size() + i]} * x[i];
    }
    return y;
  }

  TestWeights& weights_;
  const ModelSpec spec_;
};

// The error relative to the largest value.
template <class A, class B>
double Error(const A& a, const B& b, size_t n) {
  double difference = 0, size = 1e-30;
  for (size_t i = 0; i < n; ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - b[i]));
    size = std::max(size, std::abs(static_cast<double>(b[i])));
  }
  return difference / size;
}

class Mamba2StateTest : public testing::Test {
 protected:
  void SetUp() override {
    auto made = MakeMixer(device->device(), loaded, 0, DType::kF32);
    ASSERT_TRUE(made.ok()) << made.status();
    mixer = *std::move(made);
  }

  TestWeights weights{Spec(), /*seed=*/3, /*matrix_scale=*/1};
  std::unique_ptr<DecodeDevice> device = *DecodeDevice::Create(DecodeOn::kCpu, 2);
  const LoadedWeights loaded = *LoadedWeights::Load(weights, DType::kF32, device->device());
  Region region{device->memory()};
  std::unique_ptr<Mixer> mixer;
};

TEST_F(Mamba2StateTest, StateWindowAndOutputFollowTheRecurrenceInDoublePrecision) {
  constexpr int64_t kTokens = 400;
  const ModelSpec spec = Spec();
  const auto allocate = [&] {
    return mixer->AllocateForward(64, {.step = region,
                                       .figures = region,
                                       .saved = region,
                                       .scratch = region,
                                       .transient = region});
  };
  ASSERT_TRUE(allocate().ok());
  ASSERT_TRUE(region.Commit().ok());
  ASSERT_TRUE(allocate().ok());
  std::vector<std::unique_ptr<MixerState>> states;
  states.push_back(*mixer->NewState(kTokens));
  SequenceState sequence(nullptr, kTokens, std::move(states));
  SequenceState* const sequences[] = {&sequence};
  const float* window = sequence.mixer(0).tensor<float>(0);
  const float* state = sequence.mixer(0).tensor<float>(1);

  const std::vector<float> x = Normal(9, kTokens * spec.d_model);
  std::vector<float> y(x.size());
  Reference reference(weights);
  // One by one at first, then in longer and longer runs.
  for (int64_t begin = 0, n = 1; begin < kTokens; begin += n) {
    n = std::min({int64_t{64}, kTokens - begin, begin < 100 ? 1 : begin / 4});
    const Continuation piece = {.rows = n, .position = begin};
    const absl::Status status =
        mixer->Forward({.layout = {.continued = {&piece, 1}}, .sequences = sequences},
                       ConstMatrix::Of(&x[begin * spec.d_model], n, spec.d_model),
                       MutableMatrix::Of(&y[begin * spec.d_model], n, spec.d_model));
    ASSERT_TRUE(status.ok()) << status;
    for (int64_t t = begin; t < begin + n; ++t) {
      const std::vector<double> expected = reference.Step(&x[t * spec.d_model]);
      ASSERT_LT(Error(&y[t * spec.d_model], expected, expected.size()), 2e-5) << t;
    }
    ASSERT_LT(Error(state, reference.state, reference.state.size()), 1e-5) << begin;
    for (int64_t w = 0; w < spec.conv_width - 1; ++w) {
      const int64_t t = begin + n - (spec.conv_width - 1) + w;
      for (int64_t c = 0; c < spec.conv_dim(); ++c) {
        ASSERT_NEAR(window[w * spec.conv_dim() + c], t < 0 ? 0 : reference.inputs[t][c], 1e-5)
            << begin << " " << w;
      }
    }
  }
}

TEST_F(Mamba2StateTest, SizeDoesNotDependOnTheLengthOfTheSequence) {
  EXPECT_EQ((*mixer->NewState(1))->bytes(), (*mixer->NewState(1 << 20))->bytes());
  EXPECT_EQ((*mixer->NewState(1))->bytes(), 4 * (3 * (80 + 48) + 80 * 12));
}

}  // namespace
}  // namespace nibble
