#include "kernels/cpu/layers/few_rows_gemm.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "kernels/cpu/layers/layer_testing.h"

namespace nibble {
namespace {

using cpu::TestMatrix;

// Counts the matmuls that reach it.
class CountingGemm : public GemmEngine {
 public:
  std::string Name() const override { return "counting"; }
  absl::Status Gemm(const GemmRequest&) override {
    ++calls;
    return absl::OkStatus();
  }
  GemmPlan Wants(const GemmUse&) const override { return {.path = "counting"}; }
  int calls = 0;
};

class FewRowsGemmTest : public testing::Test {
 protected:
  ThreadPool pool{2};
  CountingGemm other;
  FewRowsGemm gemm{pool, other};
};

TEST_F(FewRowsGemmTest, UpToEightRowsMatchFloat64InEveryCombinationOfTypes) {
  const int64_t in = 100, outputs = 1300;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const TestMatrix x = TestMatrix::Random(dtype, 8, in, 3, 1);
    const TestMatrix w = TestMatrix::Random(dtype, outputs, in, 0, 2);
    for (const DType out : {dtype, DType::kF32}) {
      TestMatrix y(out, 8, outputs, 2);
      ASSERT_TRUE(gemm.Gemm(Fprop(x.in(), w.in(), y.out())).ok());
      EXPECT_TRUE(IsNear(
          y,
          [&](int64_t i, int64_t j) {
            double sum = 0;
            for (int64_t k = 0; k < in; ++k) sum += x(i, k) * w(j, k);
            return sum;
          },
          1e-5, 1e-4));
    }
  }
  EXPECT_EQ(other.calls, 0);
}

TEST_F(FewRowsGemmTest, OtherMatmulsGoToTheOtherEngine) {
  const TestMatrix x = TestMatrix::Random(DType::kF32, 9, 16, 0, 1);
  const TestMatrix w = TestMatrix::Random(DType::kF32, 16, 16, 0, 2);
  const TestMatrix wide = TestMatrix::Random(DType::kF32, 16, 16, 4, 2);
  TestMatrix y(DType::kF32, 9, 16), one(DType::kF32, 1, 16);
  const ConstMatrix first = {x.in().data, DType::kF32, 1, 16, 16};
  EXPECT_TRUE(gemm.Gemm(Fprop(x.in(), w.in(), y.out())).ok());
  EXPECT_EQ(other.calls, 1);
  EXPECT_TRUE(gemm.Gemm(Fprop(first, wide.in(), one.out())).ok());
  EXPECT_EQ(other.calls, 2);
  EXPECT_TRUE(gemm.Gemm(Dgrad(first, w.in(), one.out())).ok());
  EXPECT_EQ(other.calls, 3);
  GemmRequest request = Fprop(first, w.in(), one.out());
  request.accumulate = true;
  EXPECT_TRUE(gemm.Gemm(request).ok());
  EXPECT_EQ(other.calls, 4);
}

TEST_F(FewRowsGemmTest, MismatchedOperandsAreRefused) {
  const TestMatrix x = TestMatrix::Random(DType::kF32, 1, 15, 0, 1);
  const TestMatrix w = TestMatrix::Random(DType::kF32, 16, 16, 0, 2);
  TestMatrix y(DType::kF32, 1, 16);
  EXPECT_EQ(gemm.Gemm(Fprop(x.in(), w.in(), y.out())).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace nibble
