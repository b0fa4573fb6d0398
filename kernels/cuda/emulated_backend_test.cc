// The CUDA backend, including launch logic and kernels, on the host's emulation of a GPU, against
// the CPU backend: small shapes of every kind, zero tolerance.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/check_cases.h"
#include "kernels/cuda/cuda_backend.h"

namespace nibble {
namespace {

class EmulatedBackend : public ::testing::Test {
 protected:
  void SetUp() override {
    auto cpu = CpuBackend::Create({.threads = 1, .isa = {}});
    ASSERT_TRUE(cpu.ok());
    cpu_ = *std::move(cpu);
    auto cuda = CudaBackend::Create(0);
    ASSERT_TRUE(cuda.ok());
    cuda_ = *std::move(cuda);
  }

  std::unique_ptr<CpuBackend> cpu_;
  std::unique_ptr<CudaBackend> cuda_;
};

TEST_F(EmulatedBackend, MatchesTheCpuBackendInRandomCases) {
  Checker checker(*cpu_, *cuda_);
  // A few that span more than one band of tiles.
  const char* const text = std::getenv("NIBBLE_EMULATED_CASES");
  const uint64_t small = text != nullptr ? std::strtoull(text, nullptr, 10) : 100;
  for (uint64_t seed = 1; seed <= small + small / 25; ++seed) {
    const absl::Status status = checker.Run(RandomCase(seed, seed <= small ? 330 : 2000));
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(checker.differences(), 0);
  for (const auto& [path, tally] : checker.by_path()) {
    std::printf("%-70s %4ld cases, %ld elements\n", path.c_str(), static_cast<long>(tally.cases),
                static_cast<long>(tally.elements));
  }
}

// Each format with each of its blocks, both roundings and both orientations, in a tile that is not
// full; and each size of a transform.
TEST_F(EmulatedBackend, MatchesTheCpuBackendInEveryFormat) {
  Checker checker(*cpu_, *cuda_);
  const auto run = [&](const OperandSpec& spec) {
    CheckCase check;
    check.seed = 5;
    check.temper = Temper::kHeavyTails;
    check.rows = 256;
    check.cols = 128;
    check.stride = 136;
    for (CheckCopy* copy : {&check.row, &check.column}) {
      copy->wanted = true;
      copy->spec = spec;
      copy->emulated = EmulatedLayout::kSource;
      copy->statistics = true;
      copy->random = {.seed = 3, .stream = 1, .step = 9};
    }
    const absl::Status status = checker.Run(check);
    EXPECT_TRUE(status.ok()) << status;
  };
  for (const FormatInfo& format : AllFormats()) {
    for (const BlockShape block : format.shapes) {
      for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
        OperandSpec spec = OperandSpec::Of(format.format);
        spec.block = block;
        spec.rounding = rounding;
        run(spec);
      }
    }
  }
  for (int size = 2; size <= HadamardSpec::kMaxSize; size *= 2) {
    OperandSpec spec = OperandSpec::Of(Format::kMxfp4);
    spec.hadamard.size = size;
    run(spec);
  }
  EXPECT_EQ(checker.differences(), 0);
}

// Packed copies alone take loops of their own, if the formula is the present one and the tile's
// rows are a multiple of 32: whole tiles, cut ones that still are, and others beside them.
TEST_F(EmulatedBackend, PackedCopiesMatchInWholeAndCutTiles) {
  Checker checker(*cpu_, *cuda_);
  const auto run = [&](int64_t rows, int64_t cols, const OperandSpec& spec, bool bf16, int copies) {
    CheckCase check;
    check.seed = static_cast<uint64_t>(rows + copies);
    check.temper = copies == 3 ? Temper::kNormal : Temper::kMixedBlocks;
    check.bf16 = bf16;
    check.rows = rows;
    check.cols = cols;
    check.stride = cols + 16;
    for (CheckCopy* copy : {&check.row, &check.column}) {
      const bool column = copy == &check.column;
      copy->wanted = (copies & (column ? 2 : 1)) != 0;
      copy->spec = spec;
      if (column) copy->spec.hadamard.size = 16;
      copy->random = {.seed = 3, .stream = column ? 2u : 1u, .step = 9};
    }
    const absl::Status status = checker.Run(check);
    EXPECT_TRUE(status.ok()) << status;
  };
  for (const auto& [rows, cols] : {std::pair(128, 128), {96, 144}, {48, 64}, {272, 272}}) {
    for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      for (const FormulaVersion formula : {FormulaVersion::kTe2_14, FormulaVersion::kTePre2_14}) {
        OperandSpec spec;
        spec.rounding = rounding;
        spec.formula = formula;
        for (const int copies : {1, 2, 3}) {
          run(rows, cols, spec, true, copies);
          run(rows, cols, spec, false, copies);
        }
      }
    }
  }
  EXPECT_EQ(checker.differences(), 0);
  for (const auto& [path, tally] : checker.by_path()) {
    EXPECT_EQ(path.find("naive"), std::string::npos) << path;
  }
}

// MXFP4 as its preset has it, and without its transform: whole tiles, cut ones, several bands, and
// numbers of every kind. Nothing of it is left to the general kernels.
TEST_F(EmulatedBackend, MxCopiesMatchInWholeAndCutTilesOfAKernelOfTheirOwn) {
  Checker checker(*cpu_, *cuda_);
  struct Variant {
    BlockShape block;
    int hadamard;
    Rounding rounding;
  };
  const Variant variants[] = {
      {{1, 32}, 0, Rounding::kNearest},  {{1, 32}, 0, Rounding::kStochastic},
      {{1, 32}, 32, Rounding::kNearest}, {{1, 32}, 32, Rounding::kStochastic},
      {{32, 32}, 0, Rounding::kNearest}, {{32, 32}, 0, Rounding::kStochastic}};
  const auto run = [&](int64_t rows, int64_t cols, const Variant& variant, int trial) {
    CheckCase check;
    check.seed = static_cast<uint64_t>(rows + trial);
    check.temper = static_cast<Temper>(trial % static_cast<int>(Temper::kCount));
    check.bf16 = trial % 2 == 0;
    check.rows = rows;
    check.cols = cols;
    check.stride = cols + 16;
    check.placement = {64, 32, rows + 96, cols + 64};
    for (CheckCopy* copy : {&check.row, &check.column}) {
      const bool column = copy == &check.column;
      copy->wanted = ((1 + trial / 2 % 3) & (column ? 2 : 1)) != 0;
      copy->spec = OperandSpec::Of(Format::kMxfp4);
      copy->spec.block = variant.block;
      copy->spec.rounding = variant.rounding;
      if (column) copy->spec.hadamard.size = variant.hadamard;
      copy->packed = trial % 5 != 0;
      copy->emulated = copy->packed ? static_cast<EmulatedLayout>(trial % 3)
                                    : static_cast<EmulatedLayout>(1 + trial % 2);
      copy->random = {.seed = 3, .stream = column ? 2u : 1u, .step = 9};
      copy->amax_factor = trial % 4 == 3 ? 1.0f : 0.0f;
    }
    const absl::Status status = checker.Run(check);
    EXPECT_TRUE(status.ok()) << status;
  };
  int trial = 0;
  for (const auto& [rows, cols] :
       {std::pair(128, 128), {96, 160}, {32, 64}, {288, 224}, {1088, 32}}) {
    for (const Variant& variant : variants) {
      for (int i = 0; i < 7; ++i) run(rows, cols, variant, trial++);
    }
  }
  EXPECT_EQ(checker.differences(), 0);
  for (const auto& [path, tally] : checker.by_path()) {
    EXPECT_EQ(path.find("general"), std::string::npos) << path;
  }
  EXPECT_EQ(checker.by_path().size(), 6u);  // of each source: row, column, both
}

TEST_F(EmulatedBackend, WritesTheHeadOfAnEmptyMatrix) {
  for (const FormatInfo& format : AllFormats()) {
    QuantizedTensor::Options options;
    options.spec = OperandSpec::Of(format.format);
    options.cols = 128;
    QuantizedTensor out = *QuantizedTensor::Create(cuda_->memory(), options);
    QuantizeRequest request;
    request.x = {nullptr, DType::kBf16, 0, 128, 128};
    request.row.out = &out;
    ASSERT_TRUE(cuda_->Quantize(request).ok());
    const absl::StatusOr<QuantHead> head = cuda_->ReadHead(out);
    ASSERT_TRUE(head.ok());
    EXPECT_EQ(head->amax, 0.0f);
    EXPECT_EQ(head->non_finite, 0u);
    EXPECT_TRUE(head->stats == StatSums());
  }
}

}  // namespace
}  // namespace nibble
