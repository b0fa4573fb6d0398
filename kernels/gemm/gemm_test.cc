#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "kernels/cpu/cpu_backend.h"

namespace nibble {
namespace {

float some_data[1];

// Validation does not read the data.
ConstMatrix Bf16(int64_t rows, int64_t cols) { return {some_data, DType::kBf16, rows, cols, cols}; }
MutableMatrix C(int64_t rows, int64_t cols) { return {some_data, DType::kF32, rows, cols, cols}; }

QuantizedTensor Copy(const OperandSpec& spec, Orientation orientation, int64_t rows, int64_t cols,
                     bool packed = true, EmulatedLayout emulated = EmulatedLayout::kNone) {
  static HostMemory& memory = *new HostMemory;
  return *QuantizedTensor::Create(memory, {spec, orientation, rows, cols, packed, emulated});
}

OperandSpec Spec(Format format, BlockShape block, int hadamard = 0) {
  OperandSpec spec = OperandSpec::Of(format);
  spec.block = block;
  spec.hadamard.size = hadamard;
  return spec;
}
const OperandSpec kNvfp4 = Spec(Format::kNvfp4, {1, 16});

// Every refusal names both operands; `parts` are the other parts of the message.
void ExpectRefused(const GemmRequest& request, const std::vector<std::string>& parts,
                   absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  const absl::Status status = Validate(request);
  EXPECT_EQ(status.code(), code) << status;
  std::vector<std::string> wanted = parts;
  wanted.push_back("A = " + request.a.Name());
  wanted.push_back("B = " + request.b.Name());
  for (const std::string& part : wanted) {
    EXPECT_TRUE(absl::StrContains(status.message(), part))
        << "no \"" << part << "\" in: " << status.message();
  }
}

TEST(Gemm, TheThreeGemmsOfALinearLayerAreValid) {
  const auto x = Bf16(64, 32), w = Bf16(48, 32), dy = Bf16(64, 48);
  EXPECT_TRUE(Validate(Fprop(x, w, C(64, 48))).ok());
  EXPECT_TRUE(Validate(Dgrad(dy, w, C(64, 32))).ok());
  EXPECT_TRUE(Validate(Wgrad(dy, x, C(48, 32))).ok());
}

TEST(Gemm, DifferentContractionLengthsAreRefused) {
  ExpectRefused(Fprop(Bf16(64, 32), Bf16(48, 16), C(64, 48)), {"lengths 32 and 16 differ"});
  const auto x = Copy(kNvfp4, Orientation::kRow, 64, 32),
             w = Copy(kNvfp4, Orientation::kRow, 48, 64);
  ExpectRefused(Fprop(&x, &w, C(64, 48)), {"lengths 32 and 64 differ"});
}

TEST(Gemm, AWrongShapeOfCIsRefused) {
  ExpectRefused(Fprop(Bf16(64, 32), Bf16(48, 32), C(48, 64)),
                {"C is [48, 64], the result is [64, 48]"});
}

TEST(Gemm, BadViewsAreRefused) {
  ConstMatrix narrow = Bf16(64, 32);
  narrow.stride = 31;
  ExpectRefused(Fprop(narrow, Bf16(48, 32), C(64, 48)), {"A is [64, 32] with stride 31"});
  ConstMatrix missing = Bf16(48, 32);
  missing.data = nullptr;
  ExpectRefused(Fprop(Bf16(64, 32), missing, C(64, 48)), {"B is [48, 32]", "no data"});
  ExpectRefused(Fprop(Bf16(-1, 32), Bf16(48, 32), C(-1, 48)), {"A is [-1, 32]"});
  MutableMatrix c = C(64, 48);
  c.stride = 40;
  ExpectRefused(Fprop(Bf16(64, 32), Bf16(48, 32), c), {"C is [64, 48] with stride 40"});
  c = {nullptr, DType::kBf16, 64, 48, 48};
  ExpectRefused(Fprop(Bf16(64, 32), Bf16(48, 32), c), {"C is [64, 48]", "no data"});
  ExpectRefused(Fprop(static_cast<const QuantizedTensor*>(nullptr), Bf16(48, 32), C(64, 48)),
                {"A is a null tensor"});
}

TEST(Gemm, ACopyQuantisedAlongTheOtherDimensionIsRefused) {
  const auto row = Copy(kNvfp4, Orientation::kRow, 64, 64);
  const auto column = Copy(kNvfp4, Orientation::kColumn, 64, 64);
  ExpectRefused(Wgrad(&row, &column, C(64, 64)), {"A is quantised along its columns", "1x16"});
  ExpectRefused(Fprop(&row, &column, C(64, 64)), {"B is quantised along its rows", "1x16"});
  EXPECT_TRUE(Validate(Fprop(&row, &row, C(64, 64))).ok());
  EXPECT_TRUE(Validate(Wgrad(&column, &column, C(64, 64))).ok());

  const auto lines = Copy(Spec(Format::kFp4TokenChannel, {1, 0}), Orientation::kRow, 64, 64);
  ExpectRefused(Wgrad(&lines, Bf16(64, 64), C(64, 64)), {"A is quantised", "1xall"});
}

TEST(Gemm, SquareBlocksServeBothDirections) {
  for (const OperandSpec& spec :
       {Spec(Format::kNvfp4, {16, 16}), Spec(Format::kFp8Block, {128, 128}),
        Spec(Format::kFp8Tensor, {0, 0}), Spec(Format::kFp8TensorE5m2, {0, 0})}) {
    for (const Orientation orientation : {Orientation::kRow, Orientation::kColumn}) {
      const auto copy = Copy(spec, orientation, 128, 128);
      EXPECT_TRUE(Validate(Fprop(&copy, &copy, C(128, 128))).ok()) << copy.Name();
      EXPECT_TRUE(Validate(Wgrad(&copy, &copy, C(128, 128))).ok()) << copy.Name();
    }
  }
}

TEST(Gemm, DifferentHadamardTransformsAreRefused) {
  const OperandSpec size16 = Spec(Format::kNvfp4, {1, 16}, 16);
  OperandSpec seeded = size16;
  seeded.hadamard.signs = SignChoice::kSeeded;
  seeded.hadamard.seed = 77;
  const auto plain = Copy(kNvfp4, Orientation::kColumn, 64, 32);
  const auto transformed = Copy(size16, Orientation::kColumn, 64, 32);
  const auto larger = Copy(Spec(Format::kNvfp4, {1, 16}, 32), Orientation::kColumn, 64, 32);
  const auto other_signs = Copy(seeded, Orientation::kColumn, 64, 32);
  const std::string is16 = "size 16 with fixed signs";
  ExpectRefused(Wgrad(&transformed, &plain, C(32, 32)), {"A: " + is16, "B: none"});
  ExpectRefused(Wgrad(&plain, &transformed, C(32, 32)), {"A: none", "B: " + is16});
  ExpectRefused(Wgrad(&larger, &transformed, C(32, 32)), {"A: size 32", "B: " + is16});
  ExpectRefused(Wgrad(&transformed, &other_signs, C(32, 32)),
                {"A: " + is16, "B: size 16 with seeded signs of seed 77"});
  EXPECT_TRUE(Validate(Wgrad(&transformed, &transformed, C(32, 32))).ok());
}

TEST(Gemm, AHighPrecisionOperandCountsAsUntransformed) {
  const auto transformed = Copy(Spec(Format::kNvfp4, {1, 16}, 16), Orientation::kColumn, 64, 32);
  ExpectRefused(Wgrad(Bf16(64, 48), &transformed, C(48, 32)), {"A: none", "B: size 16"});
}

TEST(Gemm, DifferentFormulaVersionsAreRefusedOnlyForNvfp4) {
  OperandSpec old = kNvfp4;
  old.formula = FormulaVersion::kTePre2_14;
  const auto now = Copy(kNvfp4, Orientation::kRow, 64, 32);
  const auto before = Copy(old, Orientation::kRow, 48, 32);
  const auto other = Copy(Spec(Format::kMxfp8, {1, 32}), Orientation::kRow, 64, 32);
  ExpectRefused(Fprop(&now, &before, C(64, 48)), {"te-2.14 and te-pre-2.14 differ"});
  EXPECT_TRUE(Validate(Fprop(&other, &before, C(64, 48))).ok());
}

TEST(Gemm, ACopyWithoutCodesAndEmulatedOperandIsRefused) {
  const auto empty = Copy(kNvfp4, Orientation::kRow, 64, 32, false);
  ExpectRefused(Fprop(&empty, Bf16(48, 32), C(64, 48)), {"A has neither codes nor"},
                absl::StatusCode::kFailedPrecondition);
}

TEST(Gemm, ACopyWithoutItsFp32ScalesIsRefused) {
  for (const OperandSpec& spec :
       {Spec(Format::kFp8Block, {1, 128}), Spec(Format::kFp4Block128, {1, 128}),
        Spec(Format::kFp4TokenChannel, {1, 0})}) {
    const auto lossy = Copy(spec, Orientation::kRow, 64, 128, false, EmulatedLayout::kSource);
    ExpectRefused(Fprop(Bf16(48, 128), &lossy, C(48, 64)), {"B has no scales"},
                  absl::StatusCode::kFailedPrecondition);
  }
  const auto tensor = Copy(Spec(Format::kFp8Tensor, {0, 0}), Orientation::kRow, 64, 128, false,
                           EmulatedLayout::kSource);
  EXPECT_TRUE(Validate(Fprop(Bf16(48, 128), &tensor, C(48, 64))).ok());
}

// So that a GEMM sliced along K has only whole slices.
TEST(Gemm, CopiesWithFp32ScalesPer128AlwaysHaveWholeSlices) {
  static HostMemory& memory = *new HostMemory;
  for (const OperandSpec& spec :
       {Spec(Format::kFp8Block, {1, 128}), Spec(Format::kFp8Block, {128, 128}),
        Spec(Format::kFp4Block128, {1, 128})}) {
    const auto made = QuantizedTensor::Create(memory, {spec, Orientation::kRow, 128, 192});
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument) << spec.Name();
  }
}

}  // namespace
}  // namespace nibble
