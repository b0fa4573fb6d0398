#include "kernels/cpu/layers/cpu_norm_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/layers/layer_testing.h"

namespace nibble::cpu {
namespace {

constexpr double kEps = 1e-5f;

struct NormProblem {
  bool centered;
  DType dtype;
  int64_t tokens, d, gap;
};
std::vector<NormProblem> NormProblems() {
  std::vector<NormProblem> problems;
  for (const bool centered : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      problems.push_back({centered, dtype, 1, 3, 0});
      problems.push_back({centered, dtype, 7, 16, 3});
      problems.push_back({centered, dtype, 5, 173, 0});
      problems.push_back({centered, dtype, 300, 61, 4});
      problems.push_back({centered, dtype, 3, 2048, 1});
    }
  }
  return problems;
}

// One row in float64, from the definition; x has a mean other than 0, so that centring matters.
struct RowNorm {
  double mean = 0, rstd = 0;
};
RowNorm Statistics(const std::vector<double>& x, bool centered, double eps) {
  RowNorm norm;
  for (const double v : x) norm.mean += centered ? v / x.size() : 0;
  double squares = 0;
  for (const double v : x) squares += (v - norm.mean) * (v - norm.mean);
  norm.rstd = 1 / std::sqrt(squares / x.size() + eps);
  return norm;
}
std::vector<double> RowOf(const TestMatrix& m, int64_t i) {
  std::vector<double> row(m.cols());
  for (int64_t j = 0; j < m.cols(); ++j) row[j] = m(i, j);
  return row;
}

// The results of a whole request, run on `ops`.
struct NormRun {
  explicit NormRun(const NormProblem& p, double scale = 2)
      : p(p),
        x(TestMatrix::Random(p.dtype, p.tokens, p.d, p.gap, 1, scale)),
        y(TestMatrix::Random(p.dtype, p.tokens, p.d, p.gap, 2, scale)),
        sum(p.dtype, p.tokens, p.d, p.gap),
        out(p.dtype, p.tokens, p.d, p.gap + 2),
        dout(TestMatrix::Random(p.dtype, p.tokens, p.d, p.gap, 3)),
        residual(TestMatrix::Random(p.dtype, p.tokens, p.d, p.gap, 4, 0.5)),
        dx(p.dtype, p.tokens, p.d, p.gap),
        weight(RandomFloats(p.d, 5, 0.5, 1)),
        bias(RandomFloats(p.d, 6)),
        mean(p.tokens, -1),
        rstd(p.tokens, -1),
        dweight(RandomFloats(p.d, 7)),
        dbias(RandomFloats(p.d, 8)) {
    // Away from zero: a mean that an RMSNorm must keep and a LayerNorm must not.
    for (int64_t i = 0; i < p.tokens; ++i) {
      for (int64_t j = 0; j < p.d; ++j) x.Set(i, j, x(i, j) + 1);
    }
  }
  NormParams Params() const {
    return {p.centered, kEps, weight.data(), p.centered ? bias.data() : nullptr};
  }
  AddNormForward ForwardRequest() {
    return {Params(), x.in(), y.in(), sum.out(), out.out(), mean.data(), rstd.data(), &amax};
  }
  NormBackward BackwardRequest() {
    return {Params(),    sum.in(), dout.in(),      residual.in(), mean.data(),
            rstd.data(), dx.out(), dweight.data(), dbias.data()};
  }

  NormProblem p;
  TestMatrix x, y, sum, out, dout, residual, dx;
  std::vector<float> weight, bias, mean, rstd, dweight, dbias;
  float amax = -1;
};

class NormTest : public testing::TestWithParam<LayerIsa> {
 protected:
  ThreadPool pool_{2};
  CpuNormOps ops_{pool_, GetParam()};
};

TEST_P(NormTest, ForwardMatchesFloat64) {
  for (const NormProblem& p : NormProblems()) {
    NormRun run(p);
    ASSERT_TRUE(ops_.Forward(run.ForwardRequest()).ok());
    for (int64_t i = 0; i < p.tokens; ++i) {
      for (int64_t j = 0; j < p.d; ++j) {
        TestMatrix rounded(p.dtype, 1, 1);
        rounded.Set(0, 0, static_cast<float>(run.x(i, j)) + static_cast<float>(run.y(i, j)));
        ASSERT_EQ(run.sum(i, j), rounded(0, 0));
      }
    }
    std::vector<RowNorm> rows;
    for (int64_t i = 0; i < p.tokens; ++i) {
      rows.push_back(Statistics(RowOf(run.sum, i), p.centered, kEps));
    }
    EXPECT_TRUE(IsNear(
        run.out,
        [&](int64_t i, int64_t j) {
          return (run.sum(i, j) - rows[i].mean) * rows[i].rstd * run.weight[j] +
                 (p.centered ? run.bias[j] : 0.0);
        },
        2e-6, 2e-6));
    EXPECT_TRUE(IsNear(
        run.rstd, [&](size_t i) { return rows[i].rstd; }, 2e-6, 0));
    if (p.centered) {
      EXPECT_TRUE(IsNear(
          run.mean, [&](size_t i) { return rows[i].mean; }, 2e-6, 2e-6));
    }
    EXPECT_EQ(run.amax, LargestMagnitude(run.out));
    EXPECT_TRUE(run.sum.GapsAreUntouched());
  }
}

TEST_P(NormTest, SumMayReplaceXAndIsNotWrittenWithoutY) {
  for (const NormProblem& p : NormProblems()) {
    NormRun apart(p), in_place(p), alone(p);
    ASSERT_TRUE(ops_.Forward(apart.ForwardRequest()).ok());
    AddNormForward request = in_place.ForwardRequest();
    request.sum = in_place.x.out();
    ASSERT_TRUE(ops_.Forward(request).ok());
    EXPECT_EQ(in_place.x, apart.sum);
    EXPECT_EQ(in_place.out, apart.out);

    alone.x = apart.sum;
    request = alone.ForwardRequest();
    request.y = {};
    request.sum = {};
    ASSERT_TRUE(ops_.Forward(request).ok());
    EXPECT_EQ(alone.out, apart.out);
    EXPECT_EQ(alone.amax, apart.amax);
  }
}

TEST_P(NormTest, AdditionWithoutNormWritesOnlyTheSum) {
  for (const NormProblem& p : NormProblems()) {
    NormRun both(p), sum_only(p);
    ASSERT_TRUE(ops_.Forward(both.ForwardRequest()).ok());
    AddNormForward request;
    request.x = sum_only.x.in();
    request.y = sum_only.y.in();
    request.sum = sum_only.sum.out();
    ASSERT_TRUE(ops_.Forward(request).ok());
    EXPECT_EQ(sum_only.sum, both.sum);
  }
}

TEST_P(NormTest, BackwardMatchesTheAnalyticGradient) {
  for (const NormProblem& p : NormProblems()) {
    NormRun run(p);
    ASSERT_TRUE(ops_.Forward(run.ForwardRequest()).ok());
    const std::vector<float> dweight = run.dweight, dbias = run.dbias;
    ASSERT_TRUE(ops_.Backward(run.BackwardRequest()).ok());
    std::vector<double> sum_weight(p.d), sum_bias(p.d);
    std::vector<std::vector<double>> dx(p.tokens, std::vector<double>(p.d));
    for (int64_t i = 0; i < p.tokens; ++i) {
      const RowNorm norm = Statistics(RowOf(run.sum, i), p.centered, kEps);
      const auto normed = [&](int64_t j) { return (run.sum(i, j) - norm.mean) * norm.rstd; };
      double mean_g = 0, mean_gx = 0;
      for (int64_t j = 0; j < p.d; ++j) {
        const double g = run.dout(i, j) * run.weight[j];
        if (p.centered) mean_g += g / p.d;
        mean_gx += g * normed(j) / p.d;
        sum_weight[j] += run.dout(i, j) * normed(j);
        sum_bias[j] += run.dout(i, j);
      }
      for (int64_t j = 0; j < p.d; ++j) {
        dx[i][j] = run.residual(i, j) +
                   norm.rstd * (run.dout(i, j) * run.weight[j] - mean_g - normed(j) * mean_gx);
      }
    }
    EXPECT_TRUE(IsNear(
        run.dx, [&](int64_t i, int64_t j) { return dx[i][j]; }, 4e-6, 4e-6));
    // Sums over the tokens of terms of size 1.
    const double noise = 1e-6 * std::sqrt(p.tokens);
    EXPECT_TRUE(IsNear(
        run.dweight, [&](size_t j) { return dweight[j] + sum_weight[j]; }, 1e-6, noise));
    EXPECT_TRUE(IsNear(
        run.dbias, [&](size_t j) { return dbias[j] + (p.centered ? sum_bias[j] : 0); }, 1e-6,
        noise));
  }
}

// Against differences of Σ dout ⊙ norm(x), which knows no formula of the backward pass.
TEST_P(NormTest, BackwardMatchesDifferencesOfTheForwardPass) {
  for (const bool centered : {false, true}) {
    const NormProblem p = {centered, DType::kF32, 4, 23, 2};
    NormRun run(p);
    ASSERT_TRUE(ops_.Forward(run.ForwardRequest()).ok());
    std::fill(run.dweight.begin(), run.dweight.end(), 0.0f);
    NormBackward request = run.BackwardRequest();
    request.residual = {};
    ASSERT_TRUE(ops_.Backward(request).ok());
    std::vector<double> x(p.tokens * p.d), weight(run.weight.begin(), run.weight.end());
    for (int64_t i = 0; i < p.tokens; ++i) {
      for (int64_t j = 0; j < p.d; ++j) x[i * p.d + j] = run.sum(i, j);
    }
    const auto loss = [&] {
      double total = 0;
      for (int64_t i = 0; i < p.tokens; ++i) {
        const std::vector<double> row(x.begin() + i * p.d, x.begin() + (i + 1) * p.d);
        const RowNorm norm = Statistics(row, centered, kEps);
        for (int64_t j = 0; j < p.d; ++j) {
          total += run.dout(i, j) * (row[j] - norm.mean) * norm.rstd * weight[j];
        }
      }
      return total;
    };
    EXPECT_TRUE(IsNear(
        run.dx, [&](int64_t i, int64_t j) { return CentralDifference(x, i * p.d + j, 1e-5, loss); },
        1e-5, 1e-5));
    EXPECT_TRUE(IsNear(
        run.dweight, [&](size_t j) { return CentralDifference(weight, j, 1e-5, loss); }, 1e-5,
        1e-5));
  }
}

TEST_P(NormTest, GradientMayReplaceTheResidual) {
  for (const NormProblem& p : NormProblems()) {
    NormRun apart(p), in_place(p);
    ASSERT_TRUE(ops_.Forward(apart.ForwardRequest()).ok());
    ASSERT_TRUE(ops_.Forward(in_place.ForwardRequest()).ok());
    ASSERT_TRUE(ops_.Backward(apart.BackwardRequest()).ok());
    NormBackward request = in_place.BackwardRequest();
    request.dx = in_place.residual.out();
    ASSERT_TRUE(ops_.Backward(request).ok());
    EXPECT_EQ(in_place.residual, apart.dx);
  }
}

TEST_P(NormTest, NonFiniteValuesMakeTheirRowNanAndAmaxIgnoresNan) {
  for (const bool centered : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      for (const float bad : {kNan, kInf, 1e30f}) {
        NormRun run({centered, dtype, 3, 37, 0});
        run.x.Set(1, 36, bad);
        ASSERT_TRUE(ops_.Forward(run.ForwardRequest()).ok());
        for (int64_t j = 0; j < 37; ++j) {
          EXPECT_TRUE(std::isnan(run.out(1, j)));
          EXPECT_TRUE(std::isfinite(run.out(0, j)) && std::isfinite(run.out(2, j)));
        }
        EXPECT_EQ(run.amax, LargestMagnitude(run.out));
        ASSERT_TRUE(ops_.Backward(run.BackwardRequest()).ok());
        for (int64_t j = 0; j < 37; ++j) EXPECT_TRUE(std::isnan(run.dx(1, j)));
        EXPECT_TRUE(std::isnan(run.dweight[0]));
      }
    }
  }
}

Outcome RunNorm(int threads, LayerIsa isa) {
  ThreadPool pool(threads);
  CpuNormOps ops(pool, isa);
  Outcome all;
  for (const NormProblem& p : NormProblems()) {
    NormRun run(p);
    EXPECT_TRUE(ops.Forward(run.ForwardRequest()).ok());
    EXPECT_TRUE(ops.Backward(run.BackwardRequest()).ok());
    for (const TestMatrix& m : {run.sum, run.out, run.dx}) all.matrices.push_back(m);
    for (const auto& v : {run.rstd, run.mean, run.dweight, run.dbias, {run.amax}}) all.Keep(v);
  }
  return all;
}

TEST_P(NormTest, ResultsDoNotDependOnThreads) { ExpectSameWithThreads(RunNorm, GetParam()); }

TEST_P(NormTest, InstructionSetsAgreeToRounding) {
  ExpectNearBest(RunNorm, GetParam(), {4e-6, 4e-6}, {1e-2, 2e-5});
}

INSTANTIATE_TEST_SUITE_P(Sets, NormTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& set) { return std::string(Name(set.param)); });

TEST(NormCheckTest, ErrorsNameOperationOperandAndBothValues) {
  ThreadPool pool(1);
  CpuNormOps ops(pool);
  const NormProblem p = {true, DType::kF32, 3, 8, 0};
  NormRun run(p);
  TestMatrix other(DType::kF32, 3, 6), bf16(DType::kBf16, 3, 8);

  AddNormForward forward = run.ForwardRequest();
  forward.y = other.in();
  EXPECT_EQ(Refusal(ops.Forward(forward)), "norm forward: y is [3, 6] f32 but x is [3, 8] f32");
  forward = run.ForwardRequest();
  forward.out = bf16.out();
  EXPECT_EQ(Refusal(ops.Forward(forward)), "norm forward: out is [3, 8] bf16 but x is [3, 8] f32");
  forward = run.ForwardRequest();
  forward.mean = nullptr;
  EXPECT_EQ(Refusal(ops.Forward(forward)), "norm forward: mean is null but must hold 3 elements");
  forward = run.ForwardRequest();
  forward.norm.bias = nullptr;
  EXPECT_EQ(Refusal(ops.Forward(forward)), "norm forward: bias is null but must hold 8 elements");
  forward = run.ForwardRequest();
  forward.norm.eps = -1;
  EXPECT_EQ(Refusal(ops.Forward(forward)), "norm forward: eps is -1, below 0");
  forward = run.ForwardRequest();
  forward.y = {};
  forward.out = {};
  EXPECT_EQ(Refusal(ops.Forward(forward)),
            "norm forward: neither y nor out is there: nothing is asked");

  NormBackward backward = run.BackwardRequest();
  backward.residual = other.in();
  EXPECT_EQ(Refusal(ops.Backward(backward)),
            "norm backward: residual is [3, 6] f32 but x is [3, 8] f32");
  backward = run.BackwardRequest();
  backward.dbias = nullptr;
  EXPECT_EQ(Refusal(ops.Backward(backward)),
            "norm backward: dbias is null but must hold 8 elements");
}

}  // namespace
}  // namespace nibble::cpu
