// The CUDA GEMM engine on the host's emulation of a GPU, with a cuBLASLt in plain C++: operands,
// scales, descriptors, our own kernels, and the table of algorithms.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "kernels/cuda/gemm/cuda_gemm.h"
#include "kernels/cuda/gemm/emulated_runtime.h"
#include "kernels/cuda/gemm/fake_cublas_lt.h"
#include "kernels/cuda/gemm/gemm_cases.h"

namespace nibble {
namespace {

constexpr Contract kCols = Contract::kCols;
constexpr Contract kRows = Contract::kRows;

class EmulatedGemm : public ::testing::Test {
 protected:
  void SetUp() override {
    FakeLt() = FakeLtState();
    gpu::emulation::capturing = false;
    auto cuda = CudaBackend::Create(0);
    ASSERT_TRUE(cuda.ok());
    cuda_ = *std::move(cuda);
  }

  std::unique_ptr<CudaGemm> Engine(CudaGemm::Options options) {
    options.library = &FakeCublasLt();
    if (options.capability == 0) options.capability = 90;
    FakeLt().capability = options.capability;
    auto gemm = CudaGemm::Create(*cuda_, options);
    EXPECT_TRUE(gemm.ok()) << gemm.status();
    return *std::move(gemm);
  }

  // Every `step`-th case.
  void CheckAll(const CudaGemm::Options& options, const std::vector<GemmCase>& cases,
                size_t step = 1) {
    const auto gemm = Engine(options);
    GemmChecker checker(*cuda_);
    for (size_t i = 0; i < cases.size(); i += step) checker.Run(*gemm, cases[i]);
    checker.Print();
    EXPECT_EQ(checker.failures(), 0);
  }

  static size_t Step(size_t otherwise) {
    const char* const text = std::getenv("NIBBLE_EMULATED_GEMM_STEP");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
  }

  std::unique_ptr<CudaBackend> cuda_;
};

CudaGemm::Options Card(int capability, bool native = true, bool fp4_in_fp8 = true) {
  return {.native = native, .fp4_in_fp8 = fp4_in_fp8, .candidates = 1, .capability = capability};
}

TEST_F(EmulatedGemm, PresetsOnHopper) { CheckAll(Card(90), PresetCases(), Step(3)); }
TEST_F(EmulatedGemm, PresetsOnHopperEmulated) {
  CheckAll(Card(90, false), PresetCases(), Step(11));
}
TEST_F(EmulatedGemm, PresetsOnBlackwell) { CheckAll(Card(100), PresetCases(), Step(11)); }
TEST_F(EmulatedGemm, EdgesOnHopper) { CheckAll(Card(90), EdgeCases(), Step(1)); }
TEST_F(EmulatedGemm, EdgesOnHopperWithoutFp4InFp8) {
  CheckAll(Card(90, true, false), EdgeCases(), Step(1));
}
TEST_F(EmulatedGemm, EdgesOnBlackwell) { CheckAll(Card(100), EdgeCases(), Step(1)); }
TEST_F(EmulatedGemm, PairsOnHopper) { CheckAll(Card(90), PairCases(), Step(29)); }
TEST_F(EmulatedGemm, PairsOnBlackwell) { CheckAll(Card(100), PairCases(), Step(37)); }

TEST_F(EmulatedGemm, EdgesInBands) {
  CudaGemm::Options options = Card(90, false);
  options.sum_bytes = 1 << 14;
  CheckAll(options, EdgeCases(), Step(1));
}

// A small BF16 matmul whose memory lives as long as the fixture's.
struct SmallGemm {
  explicit SmallGemm(CudaBackend& cuda, int64_t rows = 64)
      : a(*cuda.memory().Allocate(rows * 64 * 2)),
        b(*cuda.memory().Allocate(64 * 64 * 2)),
        c(*cuda.memory().Allocate(rows * 64 * 4)) {
    // Bytes 0x3c are a BF16 number near 0.01.
    for (const Buffer* operand : {&a, &b}) {
      EXPECT_TRUE(cuda.memory().Fill(operand->data(), 0x3c, operand->bytes()).ok());
    }
  }
  GemmRequest Request(int64_t rows) const {
    return Fprop(ConstMatrix::OfBf16(a.data<uint16_t>(), rows, 64),
                 ConstMatrix::OfBf16(b.data<uint16_t>(), 64, 64),
                 MutableMatrix::Of(c.data<float>(), rows, 64));
  }
  Buffer a, b, c;
};

TEST_F(EmulatedGemm, EachMatmulAsksTheHeuristicsOnceAndNeverReducesInPlace) {
  const auto gemm = Engine({.least_measured = 1});
  const SmallGemm small(*cuda_);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(gemm->Gemm(small.Request(32)).ok());
  EXPECT_EQ(FakeLt().heuristics, 1);
  ASSERT_TRUE(gemm->Gemm(small.Request(48)).ok());
  EXPECT_EQ(FakeLt().heuristics, 2);
  EXPECT_EQ(FakeLt().launches.count(101), 0u);
  EXPECT_GT(FakeLt().launches[100], 0);
  EXPECT_GT(FakeLt().launches[102], 0);
}

TEST_F(EmulatedGemm, ASmallResultIsNotMeasured) {
  const auto gemm = Engine({});
  const SmallGemm small(*cuda_);
  ASSERT_TRUE(gemm->Gemm(small.Request(32)).ok());
  EXPECT_EQ(FakeLt().launches, (std::map<uint64_t, int64_t>{{100, 1}}));
  EXPECT_FALSE(absl::StrContains(gemm->Choices(), " ms")) << gemm->Choices();
}

TEST_F(EmulatedGemm, TheFastestAlgorithmWithTheBitsOfTheFirstRuns) {
  FakeLt().ms = {{100, 3.0}, {102, 1.0}, {103, 2.0}};
  FakeLt().other_order = {102};
  for (const bool accumulate : {false, true}) {
    const auto gemm = Engine({.least_measured = 1});
    const SmallGemm small(*cuda_);
    ASSERT_TRUE(cuda_->memory().Fill(small.c.data(), 0x3c, small.c.bytes()).ok());
    GemmRequest request = small.Request(32);
    request.accumulate = accumulate;
    const float before = small.c.data<float>()[0];
    ASSERT_TRUE(gemm->Gemm(request).ok());
    const float once = small.c.data<float>()[0];
    FakeLt().launches.clear();
    ASSERT_TRUE(gemm->Gemm(request).ok());
    EXPECT_EQ(FakeLt().launches, (std::map<uint64_t, int64_t>{{103, 1}}));
    EXPECT_THAT(
        gemm->Choices(),
        ::testing::HasSubstr("2.0000 ms, the heuristics' number 3, of 2 with the same bits; "
                             "their first 3.0000 ms; 1 with other bits"));
    // The measurement added nothing to C.
    EXPECT_NEAR(small.c.data<float>()[0] - once, accumulate ? once - before : 0, 1e-6);
  }
}

TEST_F(EmulatedGemm, AResultOfZerosSaysNothingAboutTheOrderOfAdditions) {
  FakeLt().ms = {{100, 3.0}, {102, 1.0}, {103, 2.0}};
  const auto gemm = Engine({.least_measured = 1});
  const SmallGemm small(*cuda_);
  ASSERT_TRUE(cuda_->memory().Fill(small.a.data(), 0, small.a.bytes()).ok());
  ASSERT_TRUE(gemm->Gemm(small.Request(32)).ok());
  FakeLt().launches.clear();
  ASSERT_TRUE(gemm->Gemm(small.Request(32)).ok());
  EXPECT_EQ(FakeLt().launches, (std::map<uint64_t, int64_t>{{100, 1}}));
}

TEST_F(EmulatedGemm, AnAlgorithmThatMemoryIsTooShortToMeasureIsTheFirstAndANoticeSaysSo) {
  FakeLt().ms = {{100, 3.0}, {102, 1.0}, {103, 2.0}};
  cuda_ = *CudaBackend::Create(0, size_t{80} << 20);
  const auto gemm = Engine({.least_measured = 1});
  const SmallGemm small(*cuda_);
  GemmRequest request = small.Request(32);
  request.accumulate = true;  // measuring needs a copy of C, 8 KiB
  const MemoryUse use = cuda_->memory().use();
  const absl::StatusOr<Buffer> filler =
      cuda_->memory().Allocate(use.capacity - use.used - size_t{4096});
  ASSERT_TRUE(filler.ok()) << filler.status();
  ASSERT_TRUE(gemm->Gemm(request).ok());
  FakeLt().launches.clear();
  ASSERT_TRUE(gemm->Gemm(request).ok());
  EXPECT_EQ(FakeLt().launches, (std::map<uint64_t, int64_t>{{100, 1}}));
  EXPECT_THAT(gemm->Choices(), ::testing::HasSubstr("; not measured: memory is short"));
  const std::vector<std::string> notices = gemm->TakeNotices();
  ASSERT_EQ(notices.size(), 1u);
  EXPECT_THAT(notices[0], ::testing::HasSubstr("memory for measuring is short"));
  EXPECT_TRUE(gemm->TakeNotices().empty());
}

TEST_F(EmulatedGemm, TheFirstRowsOfALargeResultThatIsAddedToAreMeasured) {
  FakeLt().ms = {{100, 3.0}, {102, 1.0}, {103, 2.0}};
  FakeLt().other_order = {102};
  cuda_ = *CudaBackend::Create(0, size_t{80} << 20);
  const auto gemm = Engine({.least_measured = 1, .copy_bytes = 1});
  const SmallGemm small(*cuda_, 4096);
  ASSERT_TRUE(cuda_->memory().Fill(small.c.data(), 0x3c, small.c.bytes()).ok());
  GemmRequest request = small.Request(4096);
  request.accumulate = true;
  const float before = small.c.data<float>()[0];
  // 512 rows of C have 128 KiB, all of it 1 MiB.
  const MemoryUse use = cuda_->memory().use();
  const absl::StatusOr<Buffer> filler =
      cuda_->memory().Allocate(use.capacity - use.used - (size_t{160} << 10));
  ASSERT_TRUE(filler.ok()) << filler.status();
  ASSERT_TRUE(gemm->Gemm(request).ok());
  EXPECT_TRUE(gemm->TakeNotices().empty());
  const std::vector<float> once(small.c.data<float>(), small.c.data<float>() + 4096 * 64);
  EXPECT_NE(once[0], before);
  EXPECT_EQ(std::set<float>(once.begin(), once.end()).size(), 1u) << "rows were added to twice";
  FakeLt().launches.clear();
  ASSERT_TRUE(gemm->Gemm(request).ok());
  EXPECT_EQ(FakeLt().launches, (std::map<uint64_t, int64_t>{{103, 1}}));
}

TEST_F(EmulatedGemm, AGraphCapturesOnlyWhatWasPrepared) {
  const auto gemm = Engine({});
  const SmallGemm small(*cuda_);
  gpu::emulation::capturing = true;
  absl::Status status = gemm->Gemm(small.Request(32));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "32x64x64")) << status;
  EXPECT_EQ(gemm->Prepare(small.Request(32)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(FakeLt().launches.empty());
  gpu::emulation::capturing = false;
  ASSERT_TRUE(gemm->Prepare(small.Request(32)).ok());
  gpu::emulation::capturing = true;
  EXPECT_TRUE(gemm->Gemm(small.Request(32)).ok());
  EXPECT_EQ(FakeLt().heuristics, 1);
}

TEST_F(EmulatedGemm, BuffersThatAGraphUsesAreKeptWhenTheyGrow) {
  GemmStream stream(cuda_->stream());
  GrowingBuffer buffer;
  const auto reserve = [&](int64_t bytes, bool capturing) {
    gpu::emulation::capturing = capturing;
    EXPECT_TRUE(stream.Begin().ok());
    return buffer.Reserve(cuda_->memory(), stream, bytes);
  };
  ASSERT_TRUE(reserve(100, false).ok());
  const auto captured = reserve(90, true);
  ASSERT_TRUE(captured.ok());
  EXPECT_EQ(reserve(200, true).status().code(), absl::StatusCode::kFailedPrecondition);
  const auto grown = reserve(200, false);
  ASSERT_TRUE(grown.ok());
  EXPECT_NE(*grown, *captured);
  // A replay writes to the captured buffer.
  EXPECT_TRUE(cuda_->memory().Fill(*captured, 1, 90).ok());
}

TEST_F(EmulatedGemm, StoredChoicesAreUsedWithoutMeasuring) {
  const SmallGemm small(*cuda_);
  std::string text;
  {
    const auto gemm = Engine({.least_measured = 1});
    ASSERT_TRUE(gemm->Gemm(small.Request(32)).ok());
    ASSERT_TRUE(gemm->Gemm(small.Request(48)).ok());
    text = gemm->Choices();
  }
  // As if algorithm 103 had been the fastest.
  const std::string number = "algorithm=0000000000000064";
  ASSERT_TRUE(absl::StrContains(text, number)) << text;
  text = absl::StrReplaceAll(text, {{number, "algorithm=0000000000000067"}});
  FakeLt() = FakeLtState();
  const auto gemm = Engine({.least_measured = 1});
  ASSERT_TRUE(gemm->LoadChoices(text).ok());
  ASSERT_TRUE(gemm->Gemm(small.Request(32)).ok());
  EXPECT_EQ(FakeLt().heuristics, 0);
  EXPECT_EQ(FakeLt().launches, (std::map<uint64_t, int64_t>{{103, 1}}));
  // Loaded again, with and without the parts for people.
  const auto third = Engine({.least_measured = 1});
  ASSERT_TRUE(third->LoadChoices(gemm->Choices()).ok());
  ASSERT_TRUE(third->Gemm(small.Request(48)).ok());
  EXPECT_EQ(FakeLt().heuristics, 0);
}

TEST_F(EmulatedGemm, ChoicesOfAnotherLibraryOrCardAreRefused) {
  const auto gemm = Engine({});
  const std::string text = gemm->Choices();
  EXPECT_TRUE(gemm->LoadChoices(text).ok());
  for (const auto& [from, to] : {std::pair("130100", "130000"), std::pair("emulated", "H100")}) {
    const absl::Status status = gemm->LoadChoices(absl::StrReplaceAll(text, {{from, to}}));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), to)) << status;
  }
  for (const char* line :
       {"nonsense", "64x64x64 a=bf16:k:64:none algorithm=00",
        "64x64x64 a=bf16:k:64:none b=bf16:k:64:none c=f32:64:set:host align=16 algorithm=00"}) {
    const absl::Status status = gemm->LoadChoices(absl::StrCat(text, "\n", line));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "line 4")) << status;
  }
  EXPECT_EQ(gemm->LoadChoices("\n").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(gemm->LoadChoices("").code(), absl::StatusCode::kFailedPrecondition);
}

TEST(LtProblem, TheTextFormIsReadBack) {
  LtProblem problem;
  problem.m = 16384, problem.n = 6144, problem.k = 2048;
  problem.a = {LtType::kE5M2, true, 2048, LtScale::kSlices};
  problem.b = {LtType::kBf16, false, 6144, LtScale::kNone};
  problem.c = LtType::kBf16;
  problem.c_stride = 6150;
  problem.accumulate = problem.device_alpha = true;
  problem.alignment = 4;
  const auto read = ParseLtProblem(problem.Text());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(*read == problem) << read->Text();
  for (const char* part : {"16384", "k:2048", "bf16:lines", ":add", "align=4"}) {
    const std::string text = absl::StrReplaceAll(problem.Text(), {{part, "?"}});
    EXPECT_EQ(ParseLtProblem(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST_F(EmulatedGemm, WantsWhatTheCardMultiplies) {
  const auto wants = [&](int capability, Format a, Format b, bool native = true) {
    const auto use = [](Format format, Contract contract) {
      return GemmUse::Operand{.spec = OperandSpec::Of(format), .contract = contract};
    };
    return Engine(Card(capability, native))->Wants({use(a, kCols), use(b, kRows)});
  };
  GemmPlan plan = wants(90, Format::kNvfp4, Format::kNvfp4);
  EXPECT_EQ(plan.path, "emulated BF16");
  EXPECT_EQ(plan.reason, "cards before compute capability 10.0 have no FP4 tensor cores");
  EXPECT_EQ(plan.a.form, OperandForm::kEmulatedSource);
  EXPECT_FALSE(plan.a.packed);
  plan = wants(100, Format::kNvfp4, Format::kNvfp4);
  EXPECT_EQ(plan.path, "native FP4");
  EXPECT_EQ(plan.b.form, OperandForm::kPackedTiles);
  plan = wants(90, Format::kFp8TensorE5m2, Format::kFp8Tensor);
  EXPECT_EQ(plan.path, "native FP8, a scale per tensor");
  EXPECT_EQ(plan.a.form, OperandForm::kPacked);
  EXPECT_TRUE(plan.a.packed);
  plan = wants(90, Format::kFp8Block, Format::kFp8Block, false);
  EXPECT_EQ(plan.path, "emulated BF16 in slices of 128 (slow)");
  EXPECT_EQ(plan.reason, "native GEMMs are switched off");
  EXPECT_EQ(plan.a.form, OperandForm::kEmulatedSource);
  EXPECT_TRUE(plan.a.packed);
  plan = Engine(Card(90))->Wants({});
  EXPECT_EQ(plan.path, "BF16");
  EXPECT_EQ(plan.a.form, OperandForm::kHighPrecision);
}

TEST_F(EmulatedGemm, GemmsWithoutTermsAreZeroOrKeepC) {
  const auto gemm = Engine({});
  const SmallGemm small(*cuda_);
  auto* c = small.c.data<float>();
  for (const bool accumulate : {true, false}) {
    for (int i = 0; i < 64; ++i) c[i] = 3;
    GemmRequest request = small.Request(2);
    request.a = GemmOperand::AlongCols(ConstMatrix::OfBf16(nullptr, 2, 0));
    request.b = GemmOperand::AlongCols(ConstMatrix::OfBf16(nullptr, 4, 0));
    request.c = {c, DType::kF32, 2, 4, 6};
    request.accumulate = accumulate;
    ASSERT_TRUE(gemm->Gemm(request).ok());
    for (int i = 0; i < 12; ++i) EXPECT_EQ(c[i], accumulate || i % 6 >= 4 ? 3 : 0) << i;
  }
}

}  // namespace
}  // namespace nibble
