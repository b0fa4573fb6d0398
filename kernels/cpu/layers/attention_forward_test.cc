#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/attention_testing.h"
#include "kernels/cpu/layers/cpu_attention_ops.h"

namespace nibble::cpu {
namespace {

// FP32: scores of a few units are off by some 2^−22, and e to the score by as much of itself.
constexpr double kOutFp32Tolerance = 1e-5;
// BF16: every probability is rounded once, then the result.
constexpr double kOutBf16Tolerance = 2 * kBf16Rounding + kOutFp32Tolerance;

struct Answer {
  TestMatrix out;
  std::vector<float> lse;
  float amax = kNan;
};

Answer Attend(AttentionOps& ops, const AttentionProblem& problem, const TestMatrix& qkv,
              const std::vector<int32_t>& documents) {
  Answer answer{problem.Out(), std::vector<float>(problem.tokens() * problem.heads, kNan)};
  const absl::Status status =
      ops.Forward({.shape = problem.shape(),
                   .layout = {problem.sequences, problem.length,
                              problem.documents ? documents.data() : nullptr},
                   .qkv = qkv.in(),
                   .out = answer.out.out(),
                   .lse = answer.lse.data(),
                   .amax = &answer.amax});
  EXPECT_TRUE(status.ok()) << status;
  return answer;
}
Answer Attend(AttentionOps& ops, const AttentionProblem& problem) {
  return Attend(ops, problem, problem.Qkv(), problem.DocBegin());
}

AttentionReference Reference(const AttentionProblem& problem, const TestMatrix& qkv,
                             const std::vector<int32_t>& documents) {
  return {problem.shape(), problem.sequences, problem.length,
          problem.documents ? documents.data() : nullptr, Doubles(qkv)};
}

class AttentionForwardTest : public testing::TestWithParam<PanelIsa> {
 protected:
  ThreadPool pool_{2};
  CpuAttentionOps ops_{pool_, GetParam()};
};

TEST_P(AttentionForwardTest, OutputAndLseAgreeWithFloat64) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const AttentionProblem& problem : AttentionProblems(dtype)) {
      SCOPED_TRACE(testing::Message() << problem);
      const std::vector<int32_t> documents = problem.DocBegin();
      const TestMatrix qkv = problem.Qkv();
      const Answer answer = Attend(ops_, problem, qkv, documents);
      const AttentionReference reference = Reference(problem, qkv, documents);
      EXPECT_TRUE(IsWithin(answer.out, reference.out,
                           dtype == DType::kF32 ? kOutFp32Tolerance : kOutBf16Tolerance));
      EXPECT_TRUE(IsNear(
          answer.lse, [&](size_t i) { return reference.lse[i]; }, 1e-5, 1e-5));
      EXPECT_EQ(answer.amax, LargestMagnitude(answer.out));
    }
  }
}

// Rows whose largest score comes last, first and in between; a score of thousands is off by some
// 2^−11 in FP32, and its power by as much of itself.
TEST_P(AttentionForwardTest, ScoresInTheThousandsStayFinite) {
  AttentionProblem problem = {DType::kF32, 1, 300, 1, 1, 64};
  problem.spread = 25;
  const TestMatrix qkv = problem.Qkv();
  const Answer answer = Attend(ops_, problem, qkv, {});
  const AttentionReference reference = Reference(problem, qkv, {});
  EXPECT_TRUE(IsWithin(answer.out, reference.out, 2e-3));
  EXPECT_TRUE(IsNear(
      answer.lse, [&](size_t i) { return reference.lse[i]; }, 1e-6, 1e-3));
}

TEST_P(AttentionForwardTest, NanKeyOrValueReachesEveryTokenThatAttendsToIt) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const AttentionProblem problem = {dtype, 2, 300, 2, 2, 32};
    for (const int64_t part : {1, 2}) {  // key, value
      TestMatrix qkv = problem.Qkv();
      const int64_t bad = 150;
      // In sequence 1, key head 1.
      qkv.Set(problem.length + bad, (part * 2 + 1) * 32 + 5, kNan);
      const Answer answer = Attend(ops_, problem, qkv, {});
      for (int64_t t = 0; t < problem.length; ++t) {
        EXPECT_EQ(std::isnan(answer.out(t, 37)), false) << t;
        EXPECT_EQ(std::isnan(answer.out(problem.length + t, 5)), false) << t;
        // Tokens 128 … 149 share a block with it, and may have it or not.
        if (t < 128 || t >= bad) {
          EXPECT_EQ(std::isnan(answer.out(problem.length + t, 37)), t >= bad) << t;
        }
      }
      EXPECT_TRUE(std::isfinite(answer.amax));
      EXPECT_EQ(answer.amax, LargestMagnitude(answer.out));
    }
  }
}

TEST_P(AttentionForwardTest, NanQueryReachesOnlyItsOwnRow) {
  const AttentionProblem problem = {DType::kBf16, 1, 70, 2, 1, 16};
  TestMatrix qkv = problem.Qkv();
  qkv.Set(40, 3, kNan);
  const Answer answer = Attend(ops_, problem, qkv, {});
  for (int64_t t = 0; t < problem.length; ++t) {
    for (int64_t c = 0; c < 32; ++c) {
      EXPECT_EQ(std::isnan(answer.out(t, c)), t == 40 && c < 16) << t << ", " << c;
    }
    EXPECT_EQ(std::isnan(answer.lse[t]), t == 40) << t;
  }
}

TEST_P(AttentionForwardTest, ZeroTokensAreAccepted) {
  const AttentionProblem problem = {DType::kF32, 0, 128, 2, 1, 16};
  EXPECT_EQ(Attend(ops_, problem).amax, 0);
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionForwardTest, testing::ValuesIn(SupportedPanelIsas()),
                         PanelIsaTestName);

TEST(AttentionForwardThreadsTest, ResultsDoNotDependOnThreads) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    // Three pairs: whole pairs are tasks for one and three threads, strips are for two.
    const AttentionProblem problem = {dtype, 1, 420, 6, 3, 40, true, 2};
    ThreadPool one(1);
    CpuAttentionOps alone(one);
    const Answer expected = Attend(alone, problem);
    for (const int threads : {2, 3}) {
      ThreadPool pool(threads);
      CpuAttentionOps ops(pool);
      for (int again = 0; again < 2; ++again) {
        const Answer answer = Attend(ops, problem);
        EXPECT_TRUE(answer.out == expected.out) << threads;
        EXPECT_EQ(answer.lse, expected.lse) << threads;
        EXPECT_EQ(answer.amax, expected.amax) << threads;
      }
    }
  }
}

}  // namespace
}  // namespace nibble::cpu
