// Edge cases of the CPU engine: ragged, strided, tiny and empty GEMMs, and transforms that must
// cancel.
#include <gtest/gtest.h>

#include "kernels/gemm/cpu_gemm.h"
#include "kernels/gemm/gemm_testing.h"

namespace nibble {
namespace {

using testing::Backend2;
using testing::ErrorBound;
using testing::Result;
using testing::TestOperand;

std::vector<std::unique_ptr<CpuGemm>> Engines() {
  std::vector<std::unique_ptr<CpuGemm>> engines;
  for (const CpuGemm::Path path : {CpuGemm::Path::kFp32, CpuGemm::Path::kBf16}) {
    auto engine = CpuGemm::Create(Backend2().pool(), {path});
    if (engine.ok()) engines.push_back(*std::move(engine));
  }
  return engines;
}

// [rows, cols] of a larger matrix, so that its stride is used.
struct Strided {
  Strided(int64_t rows, int64_t cols, DType dtype, uint32_t seed)
      : rows(rows), cols(cols), stride(cols + 5), dtype(dtype) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * stride; ++i) {
      // Values beyond a row must not enter the result.
      const float x = i % stride < cols ? normal(random) : NAN;
      bf16.push_back(EncodeBf16(x));
      f32.push_back(dtype == DType::kF32 ? x : DecodeBf16(bf16.back()));
    }
  }
  ConstMatrix matrix() const {
    const void* data = dtype == DType::kF32 ? static_cast<const void*>(f32.data()) : bf16.data();
    return {data, dtype, rows, cols, stride};
  }
  double At(int64_t row, int64_t col) const { return f32[row * stride + col]; }

  int64_t rows, cols, stride;
  DType dtype;
  std::vector<uint16_t> bf16;
  std::vector<float> f32;
};

struct Shape {
  int64_t m, n, k;
};

TEST(CpuGemmEdges, RaggedStridedAndTinyGemmsMatchFloat64) {
  constexpr Shape kShapes[] = {{1, 1, 1},    {1, 1, 1000}, {3, 5, 7},      {17, 1, 33},
                               {1, 100, 64}, {49, 97, 2},  {257, 129, 65}, {266, 1030, 16}};
  const auto engines = Engines();
  for (const auto& engine : engines) {
    for (const Shape& s : kShapes) {
      for (int variant = 0; variant < 32; ++variant) {
        const Contract along_a = variant & 1 ? Contract::kRows : Contract::kCols;
        const Contract along_b = variant & 2 ? Contract::kRows : Contract::kCols;
        const bool rows_a = along_a == Contract::kRows, rows_b = along_b == Contract::kRows;
        const DType type_a = variant & 4 ? DType::kBf16 : DType::kF32;
        const DType type_b = variant & 8 ? DType::kBf16 : DType::kF32;
        const DType type_c = variant & 16 ? DType::kBf16 : DType::kF32;
        const Strided a(rows_a ? s.k : s.m, rows_a ? s.m : s.k, type_a, 1);
        const Strided b(rows_b ? s.k : s.n, rows_b ? s.n : s.k, type_b, 2);
        Result c(s.m, s.n + 3, type_c);
        const Result before = c;
        MutableMatrix view = c.matrix();
        view.cols = s.n;
        const bool accumulate = variant % 3 == 0;
        const float alpha = variant % 5 == 0 ? 1.0f : -0.5f;
        const absl::Status status =
            engine->Gemm({{a.matrix(), along_a}, {b.matrix(), along_b}, view, alpha, accumulate});
        ASSERT_TRUE(status.ok()) << status;
        for (int64_t i = 0; i < s.m; ++i) {
          for (int64_t j = 0; j < s.n + 3; j += i % 37 == 0 ? 1 : 11) {
            const int64_t at = i * (s.n + 3) + j;
            if (j >= s.n) {
              ASSERT_EQ(c.At(at), before.At(at)) << "written beyond the row's end";
              continue;
            }
            double want = accumulate ? before.At(at) : 0, magnitude = std::fabs(want);
            for (int64_t k = 0; k < s.k; ++k) {
              const double product =
                  alpha * (rows_a ? a.At(k, i) : a.At(i, k)) * (rows_b ? b.At(k, j) : b.At(j, k));
              want += product;
              magnitude += std::fabs(product);
            }
            ASSERT_NEAR(c.At(at), want, ErrorBound(s.k, magnitude, want, type_c))
                << s.m << "x" << s.n << "x" << s.k << " variant " << variant << " on "
                << engine->Name();
          }
        }
      }
    }
  }
}

TEST(CpuGemmEdges, AGemmWithoutTermsIsZeroOrKeepsC) {
  const auto engines = Engines();
  for (const auto& engine : engines) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      Result c(4, 6, dtype);
      const Result before = c;
      const float nothing = 0;
      GemmRequest request =
          Fprop(ConstMatrix::Of(&nothing, 4, 0), ConstMatrix::Of(&nothing, 6, 0), c.matrix());
      request.accumulate = true;
      ASSERT_TRUE(engine->Gemm(request).ok());
      EXPECT_TRUE(c.SameBits(before));
      request.accumulate = false;
      ASSERT_TRUE(engine->Gemm(request).ok());
      for (int64_t i = 0; i < 24; ++i) EXPECT_EQ(c.At(i), 0.0f);
    }
  }
}

TEST(CpuGemmEdges, EmptyResultsAreAllowed) {
  const auto engines = Engines();
  const Strided x(3, 8, DType::kBf16, 1);
  for (const auto& engine : engines) {
    const ConstMatrix none = {nullptr, DType::kBf16, 0, 8, 8};
    EXPECT_TRUE(engine->Gemm(Fprop(none, x.matrix(), {nullptr, DType::kF32, 0, 3, 3})).ok());
    EXPECT_TRUE(engine->Gemm(Fprop(x.matrix(), none, {nullptr, DType::kF32, 3, 0, 0})).ok());
  }
}

// One value per tile of 16 tokens becomes sixteen of equal magnitude, which are exact in nvfp4: the
// GEMM over transformed tokens must then equal the GEMM over the tokens themselves.
TEST(CpuGemmEdges, WgradOfTwoTransformedCopiesEqualsThatOfTheUntransformed) {
  constexpr int64_t kTokens = 512, kOut = 96, kIn = 64;
  std::mt19937 random(5);
  const auto sparse = [&random](int64_t cols) {
    std::vector<uint16_t> x(kTokens * cols);
    for (int64_t tile = 0; tile < kTokens; tile += 16) {
      for (int64_t col = 0; col < cols; ++col) {
        x[(tile + random() % 16) * cols + col] = EncodeBf16(random() % 2 ? 4.0f : -4.0f);
      }
    }
    return x;
  };
  const std::vector<uint16_t> dy = sparse(kOut), x = sparse(kIn);
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  spec.hadamard.size = 16;
  const auto column_copy = [&](const std::vector<uint16_t>& source, int64_t cols) {
    QuantizedTensor copy = *QuantizedTensor::Create(
        Backend2().memory(),
        {spec, Orientation::kColumn, kTokens, cols, true, EmulatedLayout::kSource});
    QuantizeRequest request;
    request.x = ConstMatrix::OfBf16(source.data(), kTokens, cols);
    request.column.out = &copy;
    EXPECT_TRUE(Backend2().Quantize(request).ok());
    return copy;
  };
  const QuantizedTensor dy_copy = column_copy(dy, kOut), x_copy = column_copy(x, kIn);
  for (const auto& engine : Engines()) {
    Result plain(kOut, kIn, DType::kF32), transformed = plain;
    ASSERT_TRUE(engine
                    ->Gemm(Wgrad(ConstMatrix::OfBf16(dy.data(), kTokens, kOut),
                                 ConstMatrix::OfBf16(x.data(), kTokens, kIn), plain.matrix()))
                    .ok());
    ASSERT_TRUE(engine->Gemm(Wgrad(&dy_copy, &x_copy, transformed.matrix())).ok());
    int64_t nonzero = 0;
    for (int64_t i = 0; i < kOut * kIn; ++i) {
      // Integers times (6 · 448)² add up exactly; only alpha = fp32(1 / (6 · 448)²) rounds.
      EXPECT_NEAR(transformed.f32[i], plain.f32[i], 0x1p-22 * std::fabs(plain.f32[i]));
      nonzero += plain.f32[i] != 0;
    }
    EXPECT_GT(nonzero, kOut * kIn / 2);
  }
}

TEST(CpuGemmEdges, TheNameContainsThePath) {
  ThreadPool one(1);
  EXPECT_EQ((*CpuGemm::Create(one, {CpuGemm::Path::kFp32}))->Name(),
            "onednn fp32 (bf16 operands widened), 1 thread");
  const auto chosen = *CpuGemm::Create(Backend2().pool(), {});
  EXPECT_EQ(chosen->path() == CpuGemm::Path::kBf16, cpu::HasBf16Instructions());
}

TEST(CpuGemmEdges, AnEngineWantsWhatItMultiplies) {
  ThreadPool pool(1);
  const auto gemm = *CpuGemm::Create(pool, {CpuGemm::Path::kFp32});
  const auto use = [](std::optional<OperandSpec> spec, Contract contract) {
    return GemmUse::Operand{.spec = spec, .contract = contract};
  };
  constexpr Contract kRows = Contract::kRows;
  const GemmPlan plain = gemm->Wants({use(std::nullopt, kRows), use(std::nullopt, kRows)});
  EXPECT_EQ(plain.a.form, OperandForm::kHighPrecision);
  EXPECT_EQ(plain.path, "FP32");
  for (const FormatInfo& format : AllFormats()) {
    const OperandSpec spec = OperandSpec::Of(format.format);
    const GemmPlan plan = gemm->Wants({use(spec, kRows), use(spec, kRows)});
    EXPECT_EQ(plan.path, "emulated FP32");
    // An operand with exactly these parts is valid.
    const testing::OperandShape shape = {128, 128, kRows};
    const TestOperand a(Backend2(), {spec}, shape, 1, plan.a.packed, plan.a.emulated());
    const TestOperand b(Backend2(), {spec}, shape, 2, plan.b.packed, plan.b.emulated());
    Result c(128, 128, DType::kF32);
    const absl::Status status = gemm->Gemm({a.operand(), b.operand(), c.matrix()});
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST(CpuGemmEdges, InvalidRequestsAreRefusedBeforeAnythingIsWritten) {
  const Strided x(3, 8, DType::kBf16, 1), w(4, 9, DType::kBf16, 2);
  Result c(3, 4, DType::kF32);
  const Result before = c;
  const auto engine = *CpuGemm::Create(Backend2().pool(), {});
  EXPECT_EQ(engine->Gemm(Fprop(x.matrix(), w.matrix(), c.matrix())).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(c.SameBits(before));
}

}  // namespace
}  // namespace nibble
