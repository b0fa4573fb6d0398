#include "kernels/gemm/cpu_gemm.h"

#include <gtest/gtest.h>

#include <utility>

#include "kernels/gemm/gemm_testing.h"

namespace nibble {
namespace {

using testing::AllKinds;
using testing::Backend2;
using testing::ErrorBound;
using testing::FoldedAlpha;
using testing::kEvery;
using testing::OperandKind;
using testing::OperandShape;
using testing::ReferenceGemm;
using testing::ReferenceSum;
using testing::Result;
using testing::TestOperand;

std::unique_ptr<CpuGemm> Engine(CpuGemm::Path path, ThreadPool& pool = Backend2().pool()) {
  return *CpuGemm::Create(pool, {path});
}

// Null if oneDNN has no BF16 GEMM for this processor.
std::unique_ptr<CpuGemm> Bf16Engine(ThreadPool& pool = Backend2().pool()) {
  auto engine = CpuGemm::Create(pool, {CpuGemm::Path::kBf16});
  return engine.ok() ? *std::move(engine) : nullptr;
}

struct Case {
  int64_t m, n, k;
  Contract a, b;
  bool crossed = false;
};
constexpr Contract kCols = Contract::kCols;
constexpr Contract kRows = Contract::kRows;

// Runs a GEMM and checks that its elements are within the bound.
void CheckGemm(CpuGemm& engine, const TestOperand& a, const TestOperand& b,
               const std::vector<ReferenceSum>& sums, const Case& shape, float alpha,
               bool accumulate, DType c_dtype) {
  Result c(shape.m, shape.n, c_dtype);
  const Result before = c;
  const absl::Status status =
      engine.Gemm({a.operand(), b.operand(), c.matrix(), alpha, accumulate});
  EXPECT_TRUE(status.ok()) << status;
  const double folded = FoldedAlpha(alpha, a, b);
  for (int64_t i = 0; i < shape.m * shape.n; i += kEvery) {
    const double added = accumulate ? before.At(i) : 0;
    const double want = folded * sums[i].sum + added;
    const double magnitude = std::fabs(folded) * sums[i].magnitude + std::fabs(added);
    const double bound = ErrorBound(shape.k, magnitude, want, c_dtype);
    EXPECT_LE(std::fabs(c.At(i) - want), bound)
        << "element " << i << " of " << a.operand().Name() << " x " << b.operand().Name() << " on "
        << engine.Name() << (accumulate ? " accumulating" : "") << ": " << c.At(i) << ", not "
        << want;
    if (::testing::Test::HasFailure()) return;
  }
}

// Blocks that serve both directions take part in `crossed` cases; the others are skipped.
bool Fits(const OperandKind& kind, bool crossed) {
  return !crossed || (kind.spec && kind.spec->block.rows == kind.spec->block.cols);
}

void CheckAllPairs(CpuGemm& engine, const Case& shape) {
  std::vector<std::unique_ptr<TestOperand>> as, bs;
  uint32_t seed = 1;
  for (const OperandKind& kind : AllKinds()) {
    if (!Fits(kind, shape.crossed)) continue;
    const auto make = [&](int64_t lines, Contract along) {
      return std::make_unique<TestOperand>(
          Backend2(), kind, OperandShape{lines, shape.k, along, shape.crossed}, seed++);
    };
    as.push_back(make(shape.m, shape.a));
    bs.push_back(make(shape.n, shape.b));
  }
  for (const auto& a : as) {
    for (const auto& b : bs) {
      const auto sums = ReferenceGemm(*a, *b, shape.m, shape.n, shape.k);
      for (const DType c : {DType::kF32, DType::kBf16}) {
        CheckGemm(engine, *a, *b, sums, shape, 1.0f, false, c);
        CheckGemm(engine, *a, *b, sums, shape, 0.7f, true, c);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

constexpr Case kThreeGemms[] = {
    {128, 128, 256, kCols, kCols}, {128, 256, 256, kCols, kRows}, {128, 128, 256, kRows, kRows}};

TEST(CpuGemm, EveryPairOfFormatsMatchesFloat64InAllThreeGemms) {
  const auto engine = Engine(CpuGemm::Path::kFp32);
  for (const Case& shape : kThreeGemms) CheckAllPairs(*engine, shape);
}

TEST(CpuGemm, EveryPairOfFormatsMatchesFloat64OnTheBf16Path) {
  const auto engine = Bf16Engine();
  if (engine == nullptr) GTEST_SKIP() << "oneDNN has no bf16 GEMM here";
  for (const Case& shape : kThreeGemms) CheckAllPairs(*engine, shape);
}

TEST(CpuGemm, SquareBlocksAlsoServeTheOtherDirection) {
  const auto engine = Engine(CpuGemm::Path::kFp32);
  CheckAllPairs(*engine, {128, 256, 384, kCols, kCols, true});
  CheckAllPairs(*engine, {256, 128, 384, kRows, kCols, true});
  CheckAllPairs(*engine, {256, 128, 384, kRows, kRows, true});
}

TEST(CpuGemm, ResultsDoNotDependOnTheNumberOfThreads) {
  ThreadPool one(1), two(2), three(3);
  const Case shape = {384, 384, 256, kCols, kRows};
  uint32_t seed = 1;
  for (const OperandKind& kind : AllKinds()) {
    const TestOperand a(Backend2(), kind, {shape.m, shape.k, shape.a}, seed++);
    const TestOperand b(Backend2(), kind, {shape.n, shape.k, shape.b}, seed++);
    for (const DType c_dtype : {DType::kF32, DType::kBf16}) {
      for (const bool bf16 : {false, true}) {
        std::optional<Result> first;
        for (ThreadPool* pool : {&one, &two, &three}) {
          const auto engine = bf16 ? Bf16Engine(*pool) : Engine(CpuGemm::Path::kFp32, *pool);
          if (engine == nullptr) continue;
          Result c(shape.m, shape.n, c_dtype);
          ASSERT_TRUE(engine->Gemm({a.operand(), b.operand(), c.matrix(), 0.3f, true}).ok());
          if (!first) first = c;
          EXPECT_TRUE(c.SameBits(*first)) << kind.Name() << " on " << engine->Name();
        }
      }
    }
  }
}

TEST(CpuGemm, PackedAndEmulatedOperandsGiveTheSameBits) {
  const auto fp32 = Engine(CpuGemm::Path::kFp32);
  const auto bf16 = Bf16Engine();
  for (const OperandKind& kind : AllKinds()) {
    if (!kind.spec) continue;
    for (const Contract contract : {kCols, kRows}) {
      const OperandShape shape = {256, 384, contract};
      const TestOperand packed(Backend2(), kind, shape, 7);
      const TestOperand both(Backend2(), kind, shape, 7, true, EmulatedLayout::kCopy);
      for (CpuGemm* engine : {fp32.get(), bf16.get()}) {
        if (engine == nullptr) continue;
        Result from_packed(256, 256, DType::kF32);
        Result from_both = from_packed;
        ASSERT_TRUE(
            engine->Gemm({packed.operand(), packed.operand(), from_packed.matrix(), 0.3f}).ok());
        ASSERT_TRUE(engine->Gemm({both.operand(), both.operand(), from_both.matrix(), 0.3f}).ok());
        EXPECT_TRUE(from_packed.SameBits(from_both)) << kind.Name() << " on " << engine->Name();
      }
    }
  }
}

// Formats whose scales are part of the operand or follow from amax need no packed form, in either
// layout.
TEST(CpuGemm, TheEmulatedFormIsEnoughIfNoScaleIsLost) {
  const auto engine = Engine(CpuGemm::Path::kFp32);
  for (const OperandKind& kind : AllKinds()) {
    if (!kind.spec) continue;
    if (kind.spec->block.cols == 128 || kind.spec->block.rows == 1) {
      if (Info(kind.spec->format).scale == ScaleKind::kF32) continue;
    }
    for (const EmulatedLayout layout : {EmulatedLayout::kSource, EmulatedLayout::kCopy}) {
      const Case shape = {96, 96, 256, kRows, kRows};
      const TestOperand packed(Backend2(), kind, {96, 256, kRows}, 7);
      const TestOperand alone(Backend2(), kind, {96, 256, kRows}, 7, false, layout);
      const auto sums = ReferenceGemm(packed, packed, shape.m, shape.n, shape.k);
      Result c(96, 96, DType::kF32);
      ASSERT_TRUE(engine->Gemm({alone.operand(), alone.operand(), c.matrix()}).ok());
      const double alpha = FoldedAlpha(1.0f, packed, packed);
      for (int64_t i = 0; i < 96 * 96; i += kEvery) {
        ASSERT_NEAR(c.f32[i], alpha * sums[i].sum,
                    ErrorBound(shape.k, alpha * sums[i].magnitude, 0, DType::kF32));
      }
    }
  }
}

// A sum of two terms of few bits is rounded once, in any order; only alpha can differ.
TEST(CpuGemm, AlphaMultipliesTheAccumulatorWithTheDefinedRounding) {
  // Large enough for oneDNN's packing kernels, which multiply elements by their own alpha.
  constexpr int64_t kSize = 256, kDepth = 256;
  std::vector<std::unique_ptr<TestOperand>> operands;
  for (const OperandKind& kind : AllKinds()) {
    if (!kind.spec) continue;
    if (kind.spec->format != Format::kNvfp4 && kind.spec->block.rows != BlockShape::kWhole)
      continue;
    const OperandShape shape = {kSize, kDepth, kCols, false, 2};
    operands.push_back(std::make_unique<TestOperand>(Backend2(), kind, shape, 3));
  }
  const auto fp32 = Engine(CpuGemm::Path::kFp32);
  const auto bf16 = Bf16Engine();
  for (const auto& a : operands) {
    for (const auto& b : operands) {
      const auto sums = ReferenceGemm(*a, *b, kSize, kSize, kDepth);
      const float alpha = FoldedAlpha(0.37f, *a, *b);
      for (CpuGemm* engine : {fp32.get(), bf16.get()}) {
        if (engine == nullptr) continue;
        Result c(kSize, kSize, DType::kF32);
        ASSERT_TRUE(engine->Gemm({a->operand(), b->operand(), c.matrix(), 0.37f}).ok());
        for (int64_t i = 0; i < kSize * kSize; i += kEvery) {
          ASSERT_EQ(c.f32[i], static_cast<float>(sums[i].sum) * alpha)
              << a->operand().Name() << " x " << b->operand().Name() << " on " << engine->Name();
        }
      }
    }
  }
}

TEST(CpuGemm, ThePathsDifferAtMostByTheOrderOfAdditions) {
  const auto bf16 = Bf16Engine();
  if (bf16 == nullptr) GTEST_SKIP() << "oneDNN has no bf16 GEMM here";
  const auto fp32 = Engine(CpuGemm::Path::kFp32);
  for (const OperandKind& kind : AllKinds()) {
    const TestOperand a(Backend2(), kind, {256, 512, kRows}, 5);
    const TestOperand b(Backend2(), kind, {128, 512, kRows}, 6);
    const auto sums = ReferenceGemm(a, b, 256, 128, 512);
    const double alpha = std::fabs(FoldedAlpha(1.0f, a, b));
    Result x(256, 128, DType::kF32), y = x;
    ASSERT_TRUE(fp32->Gemm({a.operand(), b.operand(), x.matrix()}).ok());
    ASSERT_TRUE(bf16->Gemm({a.operand(), b.operand(), y.matrix()}).ok());
    for (int64_t i = 0; i < 256 * 128; i += kEvery) {
      ASSERT_NEAR(x.f32[i], y.f32[i],
                  2 * ErrorBound(512, alpha * sums[i].magnitude, 0, DType::kF32))
          << kind.Name();
    }
  }
}

}  // namespace
}  // namespace nibble
