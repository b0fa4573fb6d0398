#include "kernels/cpu/layers/cpu_optimizer_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/layers/cpu_elementwise_ops.h"
#include "kernels/cpu/layers/layer_testing.h"

namespace nibble::cpu {
namespace {

class OptimizerTest : public testing::TestWithParam<LayerIsa> {
 protected:
  double Sum(const std::vector<float>& x) {
    double sum = -1;
    EXPECT_TRUE(ops_.Run(SumOfSquares{x.data(), static_cast<int64_t>(x.size()), &sum}).ok());
    return sum;
  }

  ThreadPool pool_{2};
  CpuOptimizerOps ops_{pool_, GetParam()};
};

TEST_P(OptimizerTest, SumOfSquaresMatchesFloat64) {
  for (const int64_t n : {0, 1, 15, 16, 17, 1000, 65536, 200003}) {
    const std::vector<float> x = RandomFloats(n, 1, 1e15);
    long double expected = 0;
    for (const float v : x) expected += static_cast<long double>(v) * v;
    EXPECT_TRUE(IsNear(Sum(x), static_cast<double>(expected), 1e-13, 0)) << n;
  }
}

TEST_P(OptimizerTest, SumOfSquaresPropagatesNonFiniteValues) {
  for (const size_t at : {size_t{0}, size_t{70000}, size_t{70003}}) {
    std::vector<float> x = RandomFloats(70004, 1);
    x[at] = kInf;
    EXPECT_EQ(Sum(x), kInf);
    x[at] = kNan;
    EXPECT_TRUE(std::isnan(Sum(x)));
  }
}

TEST_P(OptimizerTest, SumOfSquaresOfTheLargestFloatsIsFinite) {
  const std::vector<float> x(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(Sum(x)));
}

TEST_P(OptimizerTest, SumOfSquaresMayBeAddedToAnother) {
  const std::vector<float> x = {3, 4};
  double sum = 2;
  ASSERT_TRUE(ops_.Run(SumOfSquares{.x = x.data(), .n = 2, .sum = &sum, .add = true}).ok());
  EXPECT_EQ(sum, 27);
}

// Parameters and state of a run, and the same in float64.
struct State {
  explicit State(int64_t n)
      : param(RandomFloats(n, 1)),
        m(RandomFloats(n, 2, 0.1)),
        v(RandomFloats(n, 3, 0.1)),
        grad(RandomFloats(n, 4)) {
    for (float& x : v) x = x * x;
  }
  AdamW Request() {
    run.n = static_cast<int64_t>(param.size());
    run.param = param.data();
    run.m = m.data();
    run.v = v.data();
    run.grad = grad.data();
    run.decay = 0.1f;
    AdamW request;
    request.runs = {&run, 1};
    request.lr = 1e-2f;
    request.correction1 = 0.19f;
    request.correction2 = 0.0975f;
    return request;
  }
  friend bool operator==(const State& a, const State& b) {
    return a.param == b.param && a.m == b.m && a.v == b.v && a.grad == b.grad;
  }
  std::vector<float> param, m, v, grad;
  AdamWRun run;
};

TEST_P(OptimizerTest, AdamWMatchesFloat64) {
  for (const int64_t n : {1, 16, 33, 16384, 40001}) {
    for (const bool scaled : {false, true}) {
      const State before(n);
      State after = before;
      const float scale = 0.3f;
      const StepOutcome outcome = {.scale = scale, .update = 1};
      AdamW request = after.Request();
      if (scaled) request.outcome = &outcome;
      ASSERT_TRUE(ops_.Run(request).ok());
      std::vector<double> param(n), m(n), v(n);
      for (int64_t i = 0; i < n; ++i) {
        const double g = static_cast<double>(before.grad[i]) * (scaled ? scale : 1.0f);
        m[i] = request.beta1 * static_cast<double>(before.m[i]) + (1.0 - request.beta1) * g;
        v[i] = request.beta2 * static_cast<double>(before.v[i]) + (1.0 - request.beta2) * g * g;
        param[i] = before.param[i] * (1.0 - static_cast<double>(request.lr) * after.run.decay);
        param[i] -= static_cast<double>(request.lr) * (m[i] / request.correction1) /
                    (std::sqrt(v[i] / request.correction2) + request.eps);
      }
      // 1 − β is taken in FP32: exact for β in [½, 1).
      EXPECT_TRUE(IsNear(
          after.m, [&](size_t i) { return m[i]; }, 2e-7, 2e-8));
      EXPECT_TRUE(IsNear(
          after.v, [&](size_t i) { return v[i]; }, 4e-7, 0));
      // Old value and update may cancel: what counts is the rounding of the two.
      for (int64_t i = 0; i < n; ++i) {
        const double size = std::abs(before.param[i]) + std::abs(param[i] - before.param[i]);
        ASSERT_TRUE(IsNear(after.param[i], param[i], 0, 4e-7 * size)) << i;
      }
      EXPECT_EQ(after.grad, before.grad);
    }
  }
}

TEST_P(OptimizerTest, AdamWPropagatesNonFiniteGradientsToTheirParametersOnly) {
  for (const float bad : {kNan, kInf}) {
    State state(50), clean(50);
    state.grad[37] = bad;
    ASSERT_TRUE(ops_.Run(state.Request()).ok());
    ASSERT_TRUE(ops_.Run(clean.Request()).ok());
    EXPECT_TRUE(std::isnan(state.param[37]));
    state.param[37] = clean.param[37];
    EXPECT_EQ(state.param, clean.param);
  }
}

TEST_P(OptimizerTest, AdamWRecoversFromAGradientWhoseSquareOverflows) {
  for (const float huge : {1.9e19f, -1e30f, std::numeric_limits<float>::max()}) {
    State state(50);
    state.grad[37] = huge;
    AdamW request = state.Request();
    state.run.decay = 0;
    for (int step = 1; step <= 2000; ++step) {
      request.correction1 = 1 - static_cast<float>(std::pow(request.beta1, step));
      request.correction2 = 1 - static_cast<float>(std::pow(request.beta2, step));
      const float before = state.param[37];
      ASSERT_TRUE(ops_.Run(request).ok());
      ASSERT_TRUE(std::isfinite(state.v[37])) << huge << " at step " << step;
      // Adam's own bound on a step, 1/√(1 − β2) of the rate.
      ASSERT_LE(std::abs(state.param[37] - before), 5 * request.lr) << huge << " at step " << step;
      state.grad[37] = 1;
    }
    // The huge gradient has decayed away: the rate is what an update is worth again.
    const float before = state.param[37];
    ASSERT_TRUE(ops_.Run(request).ok());
    EXPECT_NEAR(before - state.param[37], request.lr, 0.01f * request.lr) << huge;
  }
}

TEST_P(OptimizerTest, AdamWWritesNothingIfTheStepIsSkipped) {
  const State before(100);
  State after = before;
  AdamW request = after.Request();
  const StepOutcome skipped = {.scale = kNan, .update = 0};
  request.outcome = &skipped;
  ASSERT_TRUE(ops_.Run(request).ok());
  EXPECT_TRUE(after == before);
}

TEST_P(OptimizerTest, AdamWWritesTheCopiesOfItsWeightsThatOtherPassesWouldMake) {
  for (const int64_t n : {1, 17, 16384, 40001}) {
    State plain(n), copied(n), other(50);
    for (State* state : {&plain, &copied}) {
      state->param[n / 2] = -7;
      state->grad[n - 1] = n > 1 ? kNan : 1;  // its magnitude does not count
    }
    ASSERT_TRUE(ops_.Run(plain.Request()).ok());
    std::vector<uint16_t> bf16(n, 0x1234);
    float amax = 100;
    AdamW request = copied.Request();
    copied.run.bf16 = bf16.data();
    copied.run.amax = &amax;
    other.Request();
    const AdamWRun runs[] = {other.run, copied.run};
    request.runs = runs;
    const StepOutcome skipped = {.scale = 1, .update = 0};
    request.outcome = &skipped;
    ASSERT_TRUE(ops_.Run(request).ok());
    EXPECT_EQ(bf16, std::vector<uint16_t>(n, 0x1234));
    EXPECT_EQ(amax, 100);
    request.outcome = nullptr;
    ASSERT_TRUE(ops_.Run(request).ok());
    EXPECT_EQ(std::memcmp(copied.param.data(), plain.param.data(), n * sizeof(float)), 0);
    std::vector<uint16_t> cast(n);
    CpuElementwiseOps elementwise(pool_, GetParam());
    ASSERT_TRUE(elementwise
                    .Run(Cast{.from = ConstMatrix::Of(plain.param.data(), 1, n),
                              .to = MutableMatrix::OfBf16(cast.data(), 1, n)})
                    .ok());
    EXPECT_EQ(bf16, cast);
    float largest = 0;
    for (const float x : plain.param) {
      if (!std::isnan(x)) largest = std::max(largest, std::abs(x));
    }
    EXPECT_EQ(amax, largest);
  }
}

TEST_P(OptimizerTest, AdamWWithoutLearningRateChangesOnlyItsState) {
  const State before(100);
  State after = before;
  AdamW request = after.Request();
  request.lr = 0;
  ASSERT_TRUE(ops_.Run(request).ok());
  EXPECT_EQ(after.param, before.param);
  EXPECT_NE(after.m, before.m);
}

TEST_P(OptimizerTest, ResultsDoNotDependOnThreads) {
  const std::vector<float> x = RandomFloats(300001, 9);
  const auto run = [&](int threads) {
    ThreadPool pool(threads);
    CpuOptimizerOps ops(pool, GetParam());
    State state(70001);
    double sum = 0;
    EXPECT_TRUE(ops.Run(state.Request()).ok());
    EXPECT_TRUE(ops.Run(SumOfSquares{x.data(), 300001, &sum}).ok());
    return std::pair(state, sum);
  };
  const auto one = run(1);
  EXPECT_TRUE(run(2) == one);
  EXPECT_TRUE(run(3) == one);
}

TEST_P(OptimizerTest, InstructionSetsAgreeToRounding) {
  State own(1003), best(1003);
  CpuOptimizerOps best_ops(pool_, BestLayerIsa());
  ASSERT_TRUE(ops_.Run(own.Request()).ok());
  ASSERT_TRUE(best_ops.Run(best.Request()).ok());
  EXPECT_TRUE(IsNear(
      own.param, [&](size_t i) { return best.param[i]; }, 3e-7, 3e-8));
  EXPECT_TRUE(IsNear(
      own.v, [&](size_t i) { return best.v[i]; }, 3e-7, 0));
}

INSTANTIATE_TEST_SUITE_P(Sets, OptimizerTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& set) { return std::string(Name(set.param)); });

TEST(OptimizerCheckTest, ErrorsNameOperationFieldAndBound) {
  ThreadPool pool(1);
  CpuOptimizerOps ops(pool);
  double sum = 0;
  EXPECT_EQ(Refusal(ops.Run(SumOfSquares{nullptr, 4, &sum})),
            "sum of squares: x is null but must hold 4 elements");
  EXPECT_EQ(Refusal(ops.Run(SumOfSquares{nullptr, -1, &sum})), "sum of squares: n is -1, below 0");
  State state(3);
  AdamW request = state.Request();
  request.beta2 = 1;
  EXPECT_EQ(Refusal(ops.Run(request)), "adamw: beta2 is 1, not in [0, 1)");
  request = state.Request();
  request.correction1 = 0;
  EXPECT_EQ(Refusal(ops.Run(request)), "adamw: correction1 is 0, not above 0");
  request = state.Request();
  state.run.v = nullptr;
  EXPECT_EQ(Refusal(ops.Run(request)), "adamw: v is null but must hold 3 elements");
  request = state.Request();
  request.lr = kNan;
  EXPECT_EQ(Refusal(ops.Run(request)), "adamw: lr is nan");
}

}  // namespace
}  // namespace nibble::cpu
