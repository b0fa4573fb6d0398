#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/cpu/layers/cpu_norm_ops.h"
#include "kernels/cpu/layers/layer_testing.h"

namespace nibble::cpu {
namespace {

constexpr double kGatedEps = 1e-5f;

class GatedNormTest : public testing::TestWithParam<LayerIsa> {
 protected:
  ThreadPool pool_{2};
  CpuNormOps ops_{pool_, GetParam()};
};

struct GatedProblem {
  DType dtype;
  int groups;
  int64_t tokens, width, gap;
  int64_t d() const { return groups * width; }
};
std::vector<GatedProblem> GatedProblems() {
  std::vector<GatedProblem> problems;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    problems.push_back({dtype, 1, 1, 5, 0});
    problems.push_back({dtype, 3, 5, 19, 2});
    problems.push_back({dtype, 2, 260, 32, 0});
    problems.push_back({dtype, 8, 3, 256, 5});
  }
  return problems;
}

struct GatedRun {
  explicit GatedRun(const GatedProblem& p)
      : p(p),
        y(TestMatrix::Random(p.dtype, p.tokens, p.d(), p.gap, 1)),
        z(TestMatrix::Random(p.dtype, p.tokens, p.d(), p.gap + 1, 2, 2)),
        out(p.dtype, p.tokens, p.d(), p.gap),
        dout(TestMatrix::Random(p.dtype, p.tokens, p.d(), p.gap, 3)),
        dy(p.dtype, p.tokens, p.d(), p.gap),
        dz(p.dtype, p.tokens, p.d(), p.gap + 1),
        weight(RandomFloats(p.d(), 4, 0.5, 1)),
        rstd(p.tokens * p.groups, -1),
        dweight(RandomFloats(p.d(), 5)) {}
  GatedNormForward ForwardRequest() {
    return {p.groups, kGatedEps, weight.data(), y.in(), z.in(), out.out(), rstd.data(), &amax};
  }
  GatedNormBackward BackwardRequest() {
    return {p.groups,    weight.data(), y.in(),   z.in(),        dout.in(),
            rstd.data(), dy.out(),      dz.out(), dweight.data()};
  }

  GatedProblem p;
  TestMatrix y, z, out, dout, dy, dz;
  std::vector<float> weight, rstd, dweight;
  float amax = -1;
};

TEST_P(GatedNormTest, ForwardMatchesFloat64) {
  for (const GatedProblem& p : GatedProblems()) {
    GatedRun run(p);
    ASSERT_TRUE(ops_.Forward(run.ForwardRequest()).ok());
    std::vector<double> rstd;
    for (int64_t i = 0; i < p.tokens; ++i) {
      for (int g = 0; g < p.groups; ++g) {
        double squares = 0;
        for (int64_t j = g * p.width; j < (g + 1) * p.width; ++j) {
          squares += std::pow(run.y(i, j) * Silu(run.z(i, j)), 2);
        }
        rstd.push_back(1 / std::sqrt(squares / p.width + kGatedEps));
      }
    }
    EXPECT_TRUE(IsNear(
        run.out,
        [&](int64_t i, int64_t j) {
          return run.y(i, j) * Silu(run.z(i, j)) * rstd[i * p.groups + j / p.width] * run.weight[j];
        },
        4e-6, 1e-7));
    EXPECT_TRUE(IsNear(
        run.rstd, [&](size_t i) { return rstd[i]; }, 3e-6, 0));
    EXPECT_EQ(run.amax, LargestMagnitude(run.out));
  }
}

TEST_P(GatedNormTest, BackwardMatchesDifferencesOfTheForwardPass) {
  for (const GatedProblem& p : GatedProblems()) {
    GatedRun run(p);
    ASSERT_TRUE(ops_.Forward(run.ForwardRequest()).ok());
    const std::vector<float> dweight = run.dweight;
    ASSERT_TRUE(ops_.Backward(run.BackwardRequest()).ok());
    std::vector<double> sum_weight(p.d());
    for (int64_t i = 0; i < p.tokens; ++i) {
      for (int g = 0; g < p.groups; ++g) {
        // One group: what the loss of a row is made of, as a function of its y and z.
        const int64_t first = g * p.width;
        std::vector<double> y(p.width), z(p.width);
        for (int64_t j = 0; j < p.width; ++j) {
          y[j] = run.y(i, first + j);
          z[j] = run.z(i, first + j);
        }
        double rstd = 0;
        const auto loss = [&] {
          double squares = 0, total = 0;
          for (int64_t j = 0; j < p.width; ++j) squares += std::pow(y[j] * Silu(z[j]), 2);
          rstd = 1 / std::sqrt(squares / p.width + kGatedEps);
          for (int64_t j = 0; j < p.width; ++j) {
            total += run.dout(i, first + j) * y[j] * Silu(z[j]) * rstd * run.weight[first + j];
          }
          return total;
        };
        loss();
        for (int64_t j = 0; j < p.width; ++j) {
          sum_weight[first + j] += run.dout(i, first + j) * y[j] * Silu(z[j]) * rstd;
        }
        // Differences of a sum of `width` terms: every element of small problems, some of large.
        const int64_t step = p.tokens * p.width > 2000 ? 37 : 1;
        const double rounding = p.dtype == DType::kBf16 ? kBf16Rounding : 0;
        for (int64_t j = (i + g) % step; j < p.width; j += step) {
          EXPECT_TRUE(IsNear(run.dy(i, first + j), CentralDifference(y, j, 1e-5, loss),
                             rounding + 1e-5, 2e-5));
          EXPECT_TRUE(IsNear(run.dz(i, first + j), CentralDifference(z, j, 1e-5, loss),
                             rounding + 1e-5, 2e-5));
        }
      }
    }
    EXPECT_TRUE(IsNear(
        run.dweight, [&](size_t j) { return dweight[j] + sum_weight[j]; }, 1e-6,
        2e-6 * std::sqrt(p.tokens)));
    EXPECT_TRUE(run.dy.GapsAreUntouched() && run.dz.GapsAreUntouched());
  }
}

TEST_P(GatedNormTest, NonFiniteValuesMakeTheirGroupNan) {
  for (const float bad : {kNan, kInf, 1e30f}) {
    GatedRun run({DType::kF32, 2, 2, 18, 0});
    run.y.Set(1, 20, bad);
    run.z.Set(1, 20, 3);
    ASSERT_TRUE(ops_.Forward(run.ForwardRequest()).ok());
    for (int64_t j = 0; j < 18; ++j) {
      EXPECT_TRUE(std::isfinite(run.out(1, j)));
      EXPECT_TRUE(std::isnan(run.out(1, 18 + j)));
    }
    EXPECT_EQ(run.amax, LargestMagnitude(run.out));
    ASSERT_TRUE(ops_.Backward(run.BackwardRequest()).ok());
    EXPECT_TRUE(std::isnan(run.dy(1, 30)) && std::isnan(run.dz(1, 30)));
    EXPECT_TRUE(std::isfinite(run.dy(1, 3)) && std::isfinite(run.dy(0, 30)));
  }
}

Outcome RunGatedNorm(int threads, LayerIsa isa) {
  ThreadPool pool(threads);
  CpuNormOps ops(pool, isa);
  Outcome all;
  for (const GatedProblem& p : GatedProblems()) {
    GatedRun run(p);
    EXPECT_TRUE(ops.Forward(run.ForwardRequest()).ok());
    EXPECT_TRUE(ops.Backward(run.BackwardRequest()).ok());
    for (const TestMatrix& m : {run.out, run.dy, run.dz}) all.matrices.push_back(m);
    for (const auto& v : {run.rstd, run.dweight, {run.amax}}) all.Keep(v);
  }
  return all;
}

TEST_P(GatedNormTest, ResultsDoNotDependOnThreads) {
  ExpectSameWithThreads(RunGatedNorm, GetParam());
}

TEST_P(GatedNormTest, InstructionSetsAgreeToRounding) {
  ExpectNearBest(RunGatedNorm, GetParam(), {4e-6, 4e-6}, {1e-2, 2e-5});
}

INSTANTIATE_TEST_SUITE_P(Sets, GatedNormTest, testing::ValuesIn(SupportedLayerIsas()),
                         [](const auto& set) { return std::string(Name(set.param)); });

TEST(GatedNormCheckTest, ErrorsNameOperationOperandAndBothValues) {
  ThreadPool pool(1);
  CpuNormOps ops(pool);
  TestMatrix other(DType::kF32, 3, 6);
  GatedRun gated({DType::kF32, 2, 3, 4, 0});
  GatedNormForward gated_forward = gated.ForwardRequest();
  gated_forward.groups = 3;
  EXPECT_EQ(Refusal(ops.Forward(gated_forward)),
            "gated norm forward: y has 8 columns, which are not 3 groups of equal width");
  GatedNormBackward gated_backward = gated.BackwardRequest();
  gated_backward.dz = other.out();
  EXPECT_EQ(Refusal(ops.Backward(gated_backward)),
            "gated norm backward: dz is [3, 6] f32 but y is [3, 8] f32");
}

}  // namespace
}  // namespace nibble::cpu
