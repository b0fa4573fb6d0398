#include "kernels/gemm/expand.h"

#include <gtest/gtest.h>

#include "absl/functional/function_ref.h"
#include "kernels/gemm/gemm_testing.h"

namespace nibble {
namespace {

using testing::AllKinds;
using testing::Backend2;
using testing::CodeAt;
using testing::OperandKind;
using testing::ScaleAt;

struct Source {
  static constexpr int64_t kRows = 256, kCols = 384;

  // Values of many sizes, so that small scales, zeros of both signs and subnormal codes occur.
  explicit Source(bool bad_numbers) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      const float size = std::ldexp(1.0f, -static_cast<int>(i / 64 % 40));
      x.push_back(EncodeBf16(normal(random) * size));
    }
    if (!bad_numbers) return;
    x[17] = 0x7fc0;
    x[kRows * kCols - 3] = 0xffc0;
  }
  QuantizedTensor Quantized(const OperandSpec& spec, Orientation orientation) const {
    QuantizedTensor copy = *QuantizedTensor::Create(
        Backend2().memory(), {spec, orientation, kRows, kCols, true, EmulatedLayout::kCopy});
    QuantizeRequest request;
    request.x = ConstMatrix::OfBf16(x.data(), kRows, kCols);
    (copy.is_column() ? request.column : request.row).out = &copy;
    EXPECT_TRUE(Backend2().Quantize(request).ok());
    return copy;
  }

  std::vector<uint16_t> x;
};

void ForEachCopy(bool bad_numbers, absl::FunctionRef<void(const QuantizedTensor&)> check) {
  const Source source(bad_numbers);
  for (const OperandKind& kind : AllKinds()) {
    if (!kind.spec) continue;
    for (const Orientation orientation : {Orientation::kRow, Orientation::kColumn}) {
      check(source.Quantized(*kind.spec, orientation));
    }
  }
}

TEST(Expand, GivesTheSameBitsAsEmulation) {
  for (const bool bad_numbers : {false, true}) {
    ForEachCopy(bad_numbers, [](const QuantizedTensor& copy) {
      const int64_t elements = Source::kRows * Source::kCols;
      std::vector<uint16_t> bf16(elements);
      std::vector<float> f32(elements);
      ASSERT_TRUE(ExpandOperand(copy, &Backend2().pool(), bf16.data()).ok());
      ASSERT_TRUE(ExpandOperand(copy, nullptr, f32.data()).ok());
      for (int64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(bf16[i], copy.emulated()[i]) << copy.Name() << " element " << i;
        ASSERT_EQ(BitsOf<float>(f32[i]), static_cast<uint32_t>(bf16[i]) << 16) << copy.Name();
      }
    });
  }
}

TEST(Dequantize, GivesCodeTimesScaleInTheDefinedOrder) {
  ForEachCopy(false, [](const QuantizedTensor& copy) {
    std::vector<float> values(Source::kRows * Source::kCols);
    ASSERT_TRUE(Dequantize(copy, &Backend2().pool(), values.data()).ok());
    for (int64_t row = 0; row < copy.copy_rows(); ++row) {
      for (int64_t col = 0; col < copy.copy_cols(); ++col) {
        const auto code = static_cast<float>(CodeAt(copy, row, col));
        auto factor = static_cast<float>(ScaleAt(copy, row, col));
        if (copy.spec().format == Format::kNvfp4) {
          factor = (factor * copy.head()->amax) * BitCast<float>(0x39c30c31u);
        }
        ASSERT_EQ(BitsOf<float>(values[row * copy.copy_cols() + col]), BitsOf<float>(code * factor))
            << copy.Name() << " at " << row << ", " << col;
      }
    }
  });
}

TEST(Dequantize, KeepsTheNanOfFp8Codes) {
  const Source source(true);
  const QuantizedTensor copy = source.Quantized(OperandSpec::Of(Format::kMxfp8), Orientation::kRow);
  std::vector<float> values(Source::kRows * Source::kCols);
  ASSERT_TRUE(Dequantize(copy, nullptr, values.data()).ok());
  EXPECT_TRUE(std::isnan(values[17]));
  EXPECT_FALSE(std::isnan(values[16]));
}

TEST(Expand, ACopyWithoutCodesIsRefusedByName) {
  const QuantizedTensor copy = *QuantizedTensor::Create(
      Backend2().memory(),
      {OperandSpec::Of(Format::kNvfp4), Orientation::kRow, 16, 32, false, EmulatedLayout::kSource});
  std::vector<float> out(16 * 32);
  const absl::Status status = Dequantize(copy, nullptr, out.data());
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(copy.Name()), std::string::npos) << status;
  EXPECT_FALSE(ExpandOperand(copy, nullptr, out.data()).ok());
}

TEST(Expand, AnEmptyCopyIsAllowed) {
  const QuantizedTensor copy = *QuantizedTensor::Create(
      Backend2().memory(), {OperandSpec::Of(Format::kNvfp4), Orientation::kRow, 0, 32});
  EXPECT_TRUE(Dequantize(copy, nullptr, nullptr).ok());
}

}  // namespace
}  // namespace nibble
