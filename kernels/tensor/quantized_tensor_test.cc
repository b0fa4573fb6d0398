#include "kernels/tensor/quantized_tensor.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/tensor/hadamard_signs.h"
#include "kernels/tensor/quant_stats.h"

namespace nibble {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

QuantizedTensor::Options Options(Format format, int64_t rows, int64_t cols,
                                 Orientation orientation = Orientation::kRow) {
  return {.spec = OperandSpec::Of(format), .orientation = orientation, .rows = rows, .cols = cols};
}

std::string Refusal(const QuantizedTensor::Options& options) {
  HostMemory memory;
  const auto tensor = QuantizedTensor::Create(memory, options);
  if (tensor.ok()) return "accepted";
  EXPECT_EQ(tensor.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tensor.status().message());
}

// Format, block, and the bytes of codes and scales of the row copy of a [256, 384] source.
struct Size {
  Format format;
  BlockShape block;
  int64_t scale_rows, scale_cols, code_bytes, scale_bytes;
};
constexpr int kAll = BlockShape::kWhole;
constexpr int64_t kElements = 256 * 384;
constexpr Size kSizes[] = {
    {Format::kNvfp4, {1, 16}, 256, 24, kElements / 2, 256 * 24},
    {Format::kNvfp4, {16, 16}, 16, 24, kElements / 2, 16 * 24},
    {Format::kMxfp4, {1, 32}, 256, 12, kElements / 2, 256 * 12},
    {Format::kMxfp8, {1, 32}, 256, 12, kElements, 256 * 12},
    {Format::kFp8Block, {1, 128}, 256, 3, kElements, 256 * 3 * 4},
    {Format::kFp8Block, {128, 128}, 2, 3, kElements, 2 * 3 * 4},
    {Format::kFp8Tensor, {kAll, kAll}, 1, 1, kElements, 4},
    {Format::kFp8TensorE5m2, {kAll, kAll}, 1, 1, kElements, 4},
    {Format::kFp4Block128, {1, 128}, 256, 3, kElements / 2, 256 * 3 * 4},
    {Format::kFp4TokenChannel, {1, kAll}, 256, 1, kElements / 2, 256 * 4},
};

TEST(QuantizedTensor, SizesOfEveryFormat) {
  HostMemory memory;
  for (const Size& size : kSizes) {
    for (const bool column : {false, true}) {
      // The column copy of the transposed source is as large as the row copy.
      auto options = column ? Options(size.format, 384, 256, Orientation::kColumn)
                            : Options(size.format, 256, 384);
      options.spec.block = size.block;
      const auto tensor = QuantizedTensor::Create(memory, options);
      ASSERT_TRUE(tensor.ok()) << tensor.status();
      EXPECT_EQ(tensor->is_column(), column);
      EXPECT_EQ(tensor->copy_rows(), 256);
      EXPECT_EQ(tensor->copy_cols(), 384);
      EXPECT_EQ(tensor->scale_rows(), size.scale_rows) << tensor->Name();
      EXPECT_EQ(tensor->scale_cols(), size.scale_cols) << tensor->Name();
      EXPECT_EQ(tensor->code_bytes(), size.code_bytes) << tensor->Name();
      EXPECT_EQ(tensor->code_row_bytes(), size.code_bytes / 256) << tensor->Name();
      EXPECT_EQ(tensor->scale_bytes(), size.scale_bytes) << tensor->Name();
      EXPECT_TRUE(tensor->packed());
      EXPECT_NE(tensor->codes(), nullptr);
      EXPECT_NE(tensor->scales(), nullptr);
      EXPECT_NE(tensor->head(), nullptr);
      EXPECT_EQ(tensor->emulated(), nullptr);
    }
  }
}

TEST(QuantizedTensor, HasOnlyTheRequestedForms) {
  HostMemory memory;
  auto options = Options(Format::kNvfp4, 16, 32);
  options.packed = false;
  options.emulated = EmulatedLayout::kCopy;
  const auto tensor = QuantizedTensor::Create(memory, options);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_FALSE(tensor->packed());
  EXPECT_EQ(tensor->codes(), nullptr);
  EXPECT_EQ(tensor->scales(), nullptr);
  EXPECT_NE(tensor->emulated(), nullptr);
  EXPECT_EQ(tensor->emulated_layout(), EmulatedLayout::kCopy);
}

TEST(QuantizedTensor, TheNameContainsFormatOrientationAndShape) {
  HostMemory memory;
  auto options = Options(Format::kNvfp4, 4096, 1024, Orientation::kColumn);
  options.spec.rounding = Rounding::kStochastic;
  EXPECT_EQ(QuantizedTensor::Create(memory, options)->Name(),
            "nvfp4 1x16 stochastic column copy of [4096, 1024]");
  EXPECT_EQ(QuantizedTensor::Create(memory, Options(Format::kMxfp8, 4, 64))->Name(),
            "mxfp8 1x32 nearest row copy of [4, 64]");
}

TEST(QuantizedTensor, EmptyShapesAreValid) {
  for (const Size& size : kSizes) {
    for (const auto& [rows, cols] : {std::pair{0, 384}, {256, 0}, {0, 0}}) {
      for (const Orientation orientation : {Orientation::kRow, Orientation::kColumn}) {
        auto options = Options(size.format, rows, cols, orientation);
        options.spec.block = size.block;
        EXPECT_EQ(Refusal(options), "accepted") << rows << " by " << cols;
      }
    }
  }
}

TEST(QuantizedTensor, AShapeThatIsNotAMultipleOfTheBlockIsRefusedByName) {
  for (const Size& size : kSizes) {
    if (size.block.cols == kAll) continue;
    auto options = Options(size.format, 256, 384 + 8);
    options.spec.block = size.block;
    const std::string block = std::to_string(size.block.cols);
    EXPECT_THAT(Refusal(options), AllOf(HasSubstr("columns = 392"), HasSubstr("block " + block),
                                        HasSubstr(options.spec.Name())));
    options = Options(size.format, 384 + 8, 256, Orientation::kColumn);
    options.spec.block = size.block;
    EXPECT_THAT(Refusal(options), AllOf(HasSubstr("rows = 392"), HasSubstr("block " + block),
                                        HasSubstr(options.spec.Name())));
    // In the other direction, only blocks of several rows require a multiple.
    options = Options(size.format, 256 + 8, 384);
    options.spec.block = size.block;
    if (size.block.rows == 1) {
      EXPECT_EQ(Refusal(options), "accepted");
    } else {
      EXPECT_THAT(Refusal(options), AllOf(HasSubstr("rows = 264"), HasSubstr("block " + block)));
    }
  }
}

TEST(QuantizedTensor, AShapeThatIsNotAMultipleOfTheHadamardSizeIsRefused) {
  auto options = Options(Format::kNvfp4, 48, 7, Orientation::kColumn);
  options.spec.hadamard.size = 32;
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr("rows = 48"), HasSubstr("Hadamard size 32")));
  options.spec.hadamard.size = 16;
  EXPECT_EQ(Refusal(options), "accepted");
}

TEST(QuantizedTensor, StochasticRoundingRequiresWholeGroupsOfRandomBits) {
  auto options = Options(Format::kFp8Tensor, 5, 24);
  EXPECT_EQ(Refusal(options), "accepted");
  options.spec.rounding = Rounding::kStochastic;
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr("columns = 24"), HasSubstr("random bits 16")));
  options.cols = 32;
  EXPECT_EQ(Refusal(options), "accepted");
}

TEST(QuantizedTensor, FourBitElementsRequireAnEvenLength) {
  EXPECT_THAT(Refusal(Options(Format::kFp4TokenChannel, 4, 33)),
              AllOf(HasSubstr("columns = 33"), HasSubstr("per byte 2")));
  EXPECT_THAT(Refusal(Options(Format::kFp4TokenChannel, 33, 4, Orientation::kColumn)),
              HasSubstr("rows = 33"));
  EXPECT_EQ(Refusal(Options(Format::kFp4TokenChannel, 33, 4)), "accepted");
  EXPECT_EQ(Refusal(Options(Format::kFp8Tensor, 33, 33)), "accepted");
}

TEST(QuantizedTensor, NegativeAndEnormousShapesAreRefused) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{-16, 16},
                                   {16, -16},
                                   {int64_t{1} << 31, int64_t{1} << 31},
                                   {int64_t{1} << 62, int64_t{1} << 62}}) {
    EXPECT_THAT(Refusal(Options(Format::kFp8Tensor, rows, cols)),
                AllOf(HasSubstr("[" + std::to_string(rows) + ", " + std::to_string(cols) + "]"),
                      HasSubstr("negative or has more than 2^40")));
  }
}

TEST(QuantizedTensor, AnInvalidSpecIsRefused) {
  auto options = Options(Format::kNvfp4, 64, 64);
  options.spec.block = {1, 32};
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr("block: 1x32"), HasSubstr("1x16, 16x16")));
}

TEST(HadamardSigns, ComeFromTheSourceInTheSpec) {
  EXPECT_EQ(Signs({.size = 16, .signs = SignChoice::kFixed}), kDefaultSigns);
  EXPECT_EQ(Signs({.size = 16, .signs = SignChoice::kNone}), SignMask());
  EXPECT_EQ(Signs({.size = 16, .signs = SignChoice::kGiven, .mask = {1, 2, 3, 4}}),
            (SignMask{{1, 2, 3, 4}}));
  const HadamardSpec seeded = {.size = 16, .signs = SignChoice::kSeeded, .seed = 5};
  HadamardSpec other = seeded;
  other.seed = 6;
  EXPECT_EQ(Signs(seeded), Signs(seeded));
  EXPECT_FALSE(Signs(seeded) == Signs(other));
  EXPECT_FALSE(Signs(seeded) == kDefaultSigns);
}

TEST(HadamardSigns, TransformsAreEqualIfTheSizeAndTheUsedSignsAre) {
  const HadamardSpec fixed = {.size = 16, .signs = SignChoice::kFixed};
  HadamardSpec given = {.size = 16, .signs = SignChoice::kGiven, .mask = {0xd7e8, 0, 0, 0}};
  EXPECT_TRUE(SameTransform(fixed, given));
  given.mask[0] = 0xffffd7e8;  // beyond the size
  EXPECT_TRUE(SameTransform(fixed, given));
  given.mask[0] = 0xd7e9;
  EXPECT_FALSE(SameTransform(fixed, given));
  HadamardSpec larger = fixed;
  larger.size = 32;
  EXPECT_FALSE(SameTransform(fixed, larger));
  EXPECT_TRUE(SameTransform({}, {.size = 0, .signs = SignChoice::kNone}));
}

QuantHead Head(double error, double square) {
  QuantHead head;
  head.amax = 1.5f;
  head.stats.error_coarse = static_cast<uint64_t>(std::floor(std::ldexp(error, 24)));
  head.stats.square_coarse = static_cast<uint64_t>(std::floor(std::ldexp(square, 24)));
  return head;
}

TEST(QuantStats, FiguresComeFromTheSums) {
  QuantHead head = Head(0.25, 16);
  head.stats.error_fine = uint64_t{1} << 54;  // 0.5
  head.stats.nonzero = 50;
  head.stats.underflow = 5;
  head.stats.clipped = 4;
  head.stats.min_scale = 0x3f800000;  // 1
  head.stats.max_scale = 0x41800000;  // 16
  head.non_finite = 3;
  const QuantStats stats = Finish(head, 64);
  EXPECT_EQ(stats.relative_mse, 0.75 / 16);
  EXPECT_EQ(stats.relative_error, std::sqrt(0.75 / 16));
  EXPECT_DOUBLE_EQ(stats.snr_db, -20 * std::log10(std::sqrt(0.75 / 16)));
  EXPECT_EQ(stats.underflow, 0.1);
  EXPECT_EQ(stats.clipped, 4.0 / 64);
  EXPECT_EQ(stats.scale_spread_octaves, 4);
  EXPECT_EQ(stats.amax, 1.5f);
  EXPECT_EQ(stats.non_finite, 3u);
}

TEST(QuantStats, ZerosExactCopiesAndInfinityHaveDefinedFigures) {
  const QuantStats zeros = Finish(QuantHead(), 16);
  EXPECT_EQ(zeros.relative_error, 0);
  EXPECT_EQ(zeros.underflow, 0);
  EXPECT_EQ(zeros.clipped, 0);
  EXPECT_EQ(zeros.scale_spread_octaves, 0);
  EXPECT_EQ(Finish(QuantHead(), 0).clipped, 0);
  EXPECT_EQ(Finish(Head(0, 4), 16).snr_db, std::numeric_limits<double>::infinity());
  QuantHead infinite = Head(1, 4);
  infinite.amax = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isnan(Finish(infinite, 16).relative_error));
}

// The same for every backend; tested on the one that always exists.
TEST(Quantize, EmptyTensorsHaveAmaxZero) {
  const auto backend = *CpuBackend::Create({.threads = 2, .isa = {}});
  for (const Size& size : kSizes) {
    for (const Orientation orientation : {Orientation::kRow, Orientation::kColumn}) {
      for (const auto& [rows, cols] : {std::pair{0, 128}, {128, 0}, {0, 0}}) {
        auto options = Options(size.format, rows, cols, orientation);
        options.spec.block = size.block;
        options.emulated = EmulatedLayout::kSource;
        auto out = QuantizedTensor::Create(backend->memory(), options);
        ASSERT_TRUE(out.ok()) << out.status();
        QuantizeRequest request;
        request.x = ConstMatrix::Of(nullptr, rows, cols);
        CopyRequest& copy = out->is_column() ? request.column : request.row;
        copy.out = &*out;
        copy.statistics = true;
        ASSERT_TRUE(backend->Quantize(request).ok());
        EXPECT_EQ(out->head()->amax, 0.0f);
        EXPECT_EQ(out->head()->non_finite, 0u);
        EXPECT_EQ(out->head()->stats, StatSums());
      }
    }
  }
}

TEST(Quantize, MismatchedRequestsAreRefusedByName) {
  const auto backend = *CpuBackend::Create({.threads = 1, .isa = {}});
  const std::vector<float> x(32 * 32, 1.0f);
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  spec.rounding = Rounding::kStochastic;
  auto options = Options(Format::kNvfp4, 32, 32);
  options.spec = spec;
  auto row = *QuantizedTensor::Create(backend->memory(), options);
  QuantizeRequest good;
  good.x = ConstMatrix::Of(x.data(), 32, 32);
  good.row.out = &row;
  const auto refusal = [&](auto&& change) {
    QuantizeRequest request = good;
    change(request);
    const absl::Status status = backend->Quantize(request);
    EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](QuantizeRequest&) {}), "");
  EXPECT_THAT(refusal([](QuantizeRequest& r) { r.row.out = nullptr; }), HasSubstr("neither"));
  EXPECT_THAT(refusal([](QuantizeRequest& r) { std::swap(r.row, r.column); }),
              AllOf(HasSubstr("column copy"), HasSubstr("other orientation")));
  EXPECT_THAT(refusal([](QuantizeRequest& r) { r.x.rows = 16; }),
              AllOf(HasSubstr("row copy"), HasSubstr("[32, 32]"), HasSubstr("[16, 32]")));
  EXPECT_THAT(refusal([](QuantizeRequest& r) { r.x.stride = 31; }), HasSubstr("stride 31"));
  EXPECT_THAT(refusal([](QuantizeRequest& r) { r.x.data = nullptr; }), HasSubstr("no data"));
  EXPECT_THAT(refusal([](QuantizeRequest& r) {
                r.placement = {0, 8, 32, 64};
              }),
              AllOf(HasSubstr("row copy"), HasSubstr("8 of 64"), HasSubstr("16")));
  EXPECT_THAT(refusal([](QuantizeRequest& r) {
                r.placement = {0, 48, 32, 64};
              }),
              AllOf(HasSubstr("placement"), HasSubstr("(0, 48)"), HasSubstr("[32, 64]")));
  QuantizedTensor never;
  EXPECT_THAT(refusal([&](QuantizeRequest& r) { r.row.out = &never; }), HasSubstr("never created"));
  EXPECT_THAT(std::string(CpuBackend::Create({.threads = -1, .isa = {}}).status().message()),
              AllOf(HasSubstr("threads"), HasSubstr("-1"), HasSubstr("1024")));
}

}  // namespace
}  // namespace nibble
