#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/thread_pool.h"
#include "kernels/cpu/layers/attention_testing.h"
#include "kernels/cpu/layers/cpu_attention_ops.h"

namespace nibble::cpu {
namespace {

constexpr double kTheta = 10000;

void Rotate(AttentionOps& ops, const AttentionProblem& problem, TestMatrix& qkv, bool inverse) {
  const std::vector<int32_t> documents = problem.DocBegin();
  const absl::Status status = ops.Run(Rope{
      .shape = problem.shape(),
      .layout = {problem.sequences, problem.length, problem.documents ? documents.data() : nullptr},
      .qkv = qkv.out(),
      .theta = kTheta,
      .inverse = inverse});
  EXPECT_TRUE(status.ok()) << status;
}

// Rotated in float64; the values themselves are v's, which stay.
std::vector<Sized> Rotated(const AttentionProblem& problem, const TestMatrix& qkv, bool inverse) {
  const std::vector<int32_t> documents = problem.DocBegin();
  const int dim = problem.head_dim, half = dim / 2;
  std::vector<Sized> result;
  for (int64_t t = 0; t < problem.tokens(); ++t) {
    const int64_t position = t % problem.length - (problem.documents ? documents[t] : 0);
    for (int64_t c = 0; c < qkv.cols(); ++c) {
      Sized& x = result.emplace_back();
      if (c / dim >= problem.heads + problem.kv_heads) {
        x.Add(qkv(t, c));
        continue;
      }
      const int64_t i = c % dim % half;
      const double angle =
          (inverse ? -1 : 1) * position * std::pow(kTheta, -2.0 * static_cast<double>(i) / dim);
      const bool low = c % dim < half;
      x.Add(qkv(t, c) * std::cos(angle));
      x.Add(qkv(t, low ? c + half : c - half) * std::sin(angle) * (low ? -1 : 1));
    }
  }
  return result;
}

std::vector<AttentionProblem> Problems(DType dtype) {
  return {
      {dtype, 1, 1, 1, 1, 2},         {dtype, 2, 9, 3, 1, 6, false, 1},
      {dtype, 2, 70, 2, 2, 40, true}, {dtype, 1, 600, 4, 2, 64, true, 5},
      {dtype, 3, 50, 2, 1, 128},
  };
}

class RopeTest : public testing::TestWithParam<PanelIsa> {
 protected:
  ThreadPool pool_{2};
  CpuAttentionOps ops_{pool_, GetParam()};
};

// FP32 rounds the angle's cosine and sine, both products and their sum; BF16 once more.
TEST_P(RopeTest, RotationsAgreeWithFloat64) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const AttentionProblem& problem : Problems(dtype)) {
      for (const bool inverse : {false, true}) {
        SCOPED_TRACE(testing::Message() << problem << (inverse ? ", back" : ""));
        TestMatrix qkv = problem.Qkv();
        const std::vector<Sized> expected = Rotated(problem, qkv, inverse);
        Rotate(ops_, problem, qkv, inverse);
        EXPECT_TRUE(IsWithin(qkv, expected, 0x1p-22 + (dtype == DType::kBf16 ? kBf16Rounding : 0)));
      }
    }
  }
}

TEST_P(RopeTest, InverseUndoesARotation) {
  const AttentionProblem problem = {DType::kF32, 1, 300, 2, 1, 48, true, 2};
  const TestMatrix before = problem.Qkv();
  TestMatrix qkv = before;
  Rotate(ops_, problem, qkv, false);
  Rotate(ops_, problem, qkv, true);
  for (int64_t i = 0; i < qkv.rows(); ++i) {
    for (int64_t j = 0; j < qkv.cols(); ++j) EXPECT_NEAR(qkv(i, j), before(i, j), 4e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Isas, RopeTest, testing::ValuesIn(SupportedPanelIsas()), PanelIsaTestName);

TEST(RopeTableTest, GrowingKeepsEarlierAngles) {
  RopeTable table;
  const RopeTable::Angles few = table.At(4, kTheta, 3);
  const std::vector<float> before(few.sines, few.sines + 12);
  const RopeTable::Angles more = table.At(4, kTheta, 1000);
  EXPECT_EQ(std::vector<float>(more.sines, more.sines + 12), before);
  EXPECT_EQ(more.cosines[999 * 4], static_cast<float>(std::cos(999.0)));
  // Another base has other angles.
  EXPECT_NE(table.At(4, 500000, 3).sines[5], before[5]);
}

TEST(RopeThreadsTest, ResultsDoNotDependOnThreads) {
  const AttentionProblem problem = {DType::kBf16, 2, 500, 4, 2, 64, true};
  ThreadPool one(1), three(3);
  CpuAttentionOps alone(one), together(three);
  TestMatrix a = problem.Qkv(), b = problem.Qkv();
  Rotate(alone, problem, a, false);
  Rotate(together, problem, b, false);
  EXPECT_TRUE(a == b);
}

}  // namespace
}  // namespace nibble::cpu
