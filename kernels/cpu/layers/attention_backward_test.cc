#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/attention_testing.h"
#include "kernels/cpu/layers/cpu_attention_ops.h"

namespace nibble::cpu {
namespace {

// FP32: probabilities are off by some 2^−22 of themselves, as forward.
constexpr double kGradientFp32Tolerance = 1e-5;
// BF16: out was rounded, which moves Σ dout · out; probabilities or score gradients are rounded
// before the last product; and the result is.
constexpr double kGradientBf16Tolerance = 3 * kBf16Rounding + kGradientFp32Tolerance;

double GradientTolerance(DType dtype) {
  return dtype == DType::kF32 ? kGradientFp32Tolerance : kGradientBf16Tolerance;
}

// BackwardInputs of a backward pass; those that the forward pass yields are computed in float64.
struct BackwardInputs {
  explicit BackwardInputs(const AttentionProblem& problem)
      : problem(problem),
        documents(problem.DocBegin()),
        qkv(problem.Qkv()),
        dout(problem.Dout()),
        out(problem.Out()),
        reference(problem.shape(), problem.sequences, problem.length,
                  problem.documents ? documents.data() : nullptr, Doubles(qkv)) {
    for (int64_t i = 0; i < out.rows(); ++i) {
      for (int64_t j = 0; j < out.cols(); ++j) {
        out.Set(i, j, reference.out[i * out.cols() + j].value);
      }
    }
    lse.assign(reference.lse.begin(), reference.lse.end());
  }

  AttentionProblem problem;
  std::vector<int32_t> documents;
  TestMatrix qkv, dout, out;
  std::vector<float> lse;
  AttentionReference reference;
};

TestMatrix Gradient(AttentionOps& ops, const BackwardInputs& inputs) {
  const AttentionProblem& problem = inputs.problem;
  TestMatrix dqkv(problem.dtype, problem.tokens(), problem.shape().qkv_cols(), problem.gap);
  const absl::Status status =
      ops.Backward({.shape = problem.shape(),
                    .layout = {problem.sequences, problem.length,
                               problem.documents ? inputs.documents.data() : nullptr},
                    .qkv = inputs.qkv.in(),
                    .out = inputs.out.in(),
                    .dout = inputs.dout.in(),
                    .lse = inputs.lse.data(),
                    .dqkv = dqkv.out()});
  EXPECT_TRUE(status.ok()) << status;
  return dqkv;
}

class AttentionBackwardTest : public testing::TestWithParam<PanelIsa> {
 protected:
  ThreadPool pool_{2};
  CpuAttentionOps ops_{pool_, GetParam()};
};

TEST_P(AttentionBackwardTest, GradientsAgreeWithFloat64) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const AttentionProblem& problem : AttentionProblems(dtype)) {
      SCOPED_TRACE(testing::Message() << problem);
      BackwardInputs inputs(problem);
      inputs.reference.Backward(Doubles(inputs.dout));
      EXPECT_TRUE(
          IsWithin(Gradient(ops_, inputs), inputs.reference.dqkv, GradientTolerance(dtype)));
    }
  }
}

TEST_P(AttentionBackwardTest, NanGradientReachesTheTokensItsRowAttendedTo) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    BackwardInputs inputs({dtype, 1, 200, 2, 2, 16});
    const int64_t bad = 100;
    inputs.dout.Set(bad, 16 + 3, kNan);
    const TestMatrix dqkv = Gradient(ops_, inputs);
    for (int64_t t = 0; t < 200; ++t) {
      // Query, key and value of head 0, of which nothing may change.
      for (const int64_t c : {0, 32, 64}) EXPECT_FALSE(std::isnan(dqkv(t, c))) << t;
      EXPECT_EQ(std::isnan(dqkv(t, 16)), t == bad) << t;
      if (t <= bad) {
        EXPECT_TRUE(std::isnan(dqkv(t, 32 + 16))) << t;
        EXPECT_TRUE(std::isnan(dqkv(t, 64 + 16 + 3))) << t;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionBackwardTest, testing::ValuesIn(SupportedPanelIsas()),
                         PanelIsaTestName);

TEST(AttentionReferenceTest, GradientsMatchDifferencesOfTheForwardPass) {
  const AttentionProblem problem = {DType::kF32, 1, 9, 4, 2, 6, true};
  std::vector<int32_t> documents = {0, 0, 0, 3, 3, 3, 3, 7, 7};
  const std::vector<double> dout = Doubles(problem.Dout());
  AttentionReference reference(problem.shape(), 1, 9, documents.data(), Doubles(problem.Qkv()));
  reference.Backward(dout);
  std::vector<double> qkv = reference.qkv();
  for (size_t i = 0; i < qkv.size(); ++i) {
    const double slope = CentralDifference(qkv, i, 1e-5, [&] {
      const AttentionReference moved(problem.shape(), 1, 9, documents.data(), qkv);
      double loss = 0;
      for (size_t j = 0; j < dout.size(); ++j) loss += dout[j] * moved.out[j].value;
      return loss;
    });
    EXPECT_NEAR(reference.dqkv[i].value, slope, 1e-8) << i;
  }
}

// From one span of all blocks to a block in each, and spans whose documents end before them.
TEST(AttentionBackwardThreadsTest, ResultsDoNotDependOnThreads) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const AttentionProblem& problem : {AttentionProblem{dtype, 1, 900, 2, 1, 24},
                                            AttentionProblem{dtype, 2, 900, 8, 4, 16, true},
                                            AttentionProblem{dtype, 3, 200, 6, 6, 16}}) {
      SCOPED_TRACE(testing::Message() << problem);
      const BackwardInputs inputs(problem);
      ThreadPool one(1);
      CpuAttentionOps alone(one);
      const TestMatrix expected = Gradient(alone, inputs);
      for (const int threads : {2, 3}) {
        ThreadPool pool(threads);
        CpuAttentionOps ops(pool);
        EXPECT_TRUE(Gradient(ops, inputs) == expected) << threads;
        EXPECT_TRUE(Gradient(ops, inputs) == expected) << threads << ", again";
      }
    }
  }
}

// Spans of several blocks, which the small problems above do not reach.
// Which threads of a pool get the few tasks is not defined: often enough, others than the first.
TEST(AttentionBackwardThreadsTest, AnyThreadMayRunTheFewTasksThereAre) {
  const BackwardInputs inputs(AttentionProblem{DType::kBf16, 1, 128, 4, 2, 32});
  ThreadPool one(1);
  CpuAttentionOps alone(one);
  const TestMatrix expected = Gradient(alone, inputs);
  ThreadPool pool(5);
  for (int again = 0; again < 100; ++again) {
    CpuAttentionOps ops(pool);
    ASSERT_TRUE(Gradient(ops, inputs) == expected) << again;
  }
}

TEST(AttentionBackwardSpansTest, LongSequencesOfManyHeadsAgreeWithFloat64) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    BackwardInputs inputs({dtype, 1, 1100, 12, 6, 8, dtype == DType::kBf16});
    inputs.reference.Backward(Doubles(inputs.dout));
    ThreadPool pool(2);
    CpuAttentionOps ops(pool);
    EXPECT_TRUE(IsWithin(Gradient(ops, inputs), inputs.reference.dqkv, GradientTolerance(dtype)));
  }
}

TEST(AttentionTrainingStepTest, ForwardAndBackwardTogetherAgreeWithFloat64) {
  BackwardInputs inputs({DType::kF32, 2, 150, 4, 2, 32, true});
  inputs.reference.Backward(Doubles(inputs.dout));
  ThreadPool pool(2);
  CpuAttentionOps ops(pool);
  const AttentionProblem& problem = inputs.problem;
  inputs.out = problem.Out();
  std::fill(inputs.lse.begin(), inputs.lse.end(), kNan);
  const absl::Status status =
      ops.Forward({.shape = problem.shape(),
                   .layout = {problem.sequences, problem.length, inputs.documents.data()},
                   .qkv = inputs.qkv.in(),
                   .out = inputs.out.out(),
                   .lse = inputs.lse.data()});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(IsWithin(Gradient(ops, inputs), inputs.reference.dqkv, kGradientFp32Tolerance));
}

}  // namespace
}  // namespace nibble::cpu
