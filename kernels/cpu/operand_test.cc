// Copies with only the BF16 operand have their own kernels; they must give the same bits as copies
// with codes, which other tests compare with the oracle.
#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/quantize_testing.h"
#include "kernels/formats/bfloat16.h"
#include "kernels/formats/hadamard.h"
#include "kernels/formats/minifloat.h"

namespace nibble {
namespace {

// [rows, cols], rows `stride` apart, as FP32 and as BF16 (for values that are exact in BF16: then
// also as `f32`).
struct PaddedSource {
  int rows, cols, stride;
  std::vector<float> f32;
  std::vector<uint16_t> bf16;

  PaddedSource(int rows, int cols, int padding = 0)
      : rows(rows), cols(cols), stride(cols + padding), f32(rows * stride, kNan) {}
  float& at(int row, int col) { return f32[row * stride + col]; }
  ConstMatrix Matrix(bool as_bf16) {
    if (!as_bf16) return {f32.data(), DType::kF32, rows, cols, stride};
    bf16.clear();
    for (const float x : f32) bf16.push_back(EncodeBf16(x));
    return {bf16.data(), DType::kBf16, rows, cols, stride};
  }
};

PaddedSource NormalPadded(int rows, int cols, int seed, int padding = 0) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  PaddedSource source(rows, cols, padding);
  for (int row = 0; row < rows; ++row) {
    for (int col = 0; col < cols; ++col) {
      const int group = row / 16 * 5 + col / 16 * 3;
      float x = std::ldexp(normal(random), group % 13 == 3 ? -18 : group % 5);
      if (random() % 32 == 0) x = std::copysign(0.0f, x);
      if (group % 11 == 7) x = std::copysign(0.0f, x);
      source.at(row, col) = x;
    }
  }
  return source;
}

struct Result {
  std::vector<uint16_t> operand;
  float amax;
  uint64_t non_finite;
  friend bool operator==(const Result&, const Result&) = default;
};

struct WantedOperand {
  OperandSpec spec;
  Orientation orientation = Orientation::kRow;
  const float* amax = nullptr;
};

std::vector<Result> Quantized(CpuBackend& backend, const ConstMatrix& x,
                              const std::vector<WantedOperand>& copies, bool packed,
                              const Placement& placement = {}) {
  QuantizeRequest request;
  request.x = x;
  request.placement = placement;
  std::vector<QuantizedTensor> out;
  for (const WantedOperand& wanted : copies) {
    auto tensor = QuantizedTensor::Create(backend.memory(), {.spec = wanted.spec,
                                                             .orientation = wanted.orientation,
                                                             .rows = x.rows,
                                                             .cols = x.cols,
                                                             .packed = packed,
                                                             .emulated = EmulatedLayout::kSource});
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    out.push_back(*std::move(tensor));
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    CopyRequest& copy = out[i].is_column() ? request.column : request.row;
    copy.out = &out[i];
    copy.amax = copies[i].amax;
    copy.random = {.seed = 0xfedcba9876543210, .stream = 3u + out[i].is_column(), .step = 5};
  }
  const absl::Status status = backend.Quantize(request);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<Result> results;
  for (const QuantizedTensor& tensor : out) {
    const QuantHead head = *backend.ReadHead(tensor);
    results.push_back({{tensor.emulated(), tensor.emulated() + tensor.rows() * tensor.cols()},
                       head.amax,
                       head.non_finite});
  }
  return results;
}

std::string Where(const Result& got, const Result& expected, int cols) {
  for (size_t i = 0; i < got.operand.size(); ++i) {
    if (got.operand[i] == expected.operand[i]) continue;
    return "first at " + std::to_string(i / cols) + ", " + std::to_string(i % cols) + ": " +
           std::to_string(DecodeBf16(got.operand[i])) + " for " +
           std::to_string(DecodeBf16(expected.operand[i]));
  }
  return "amax " + std::to_string(got.amax) + " for " + std::to_string(expected.amax) +
         ", non-finite " + std::to_string(got.non_finite) + " for " +
         std::to_string(expected.non_finite);
}

// The operands alone of every instruction set equal those of the scalar copies with codes.
void ExpectSame(const std::vector<std::unique_ptr<CpuBackend>>& backends, const ConstMatrix& x,
                const std::vector<WantedOperand>& copies, const Placement& placement = {}) {
  const std::vector<Result> expected = Quantized(*backends[0], x, copies, true, placement);
  for (const auto& backend : backends) {
    const std::vector<Result> got = Quantized(*backend, x, copies, false, placement);
    for (size_t i = 0; i < copies.size(); ++i) {
      ASSERT_TRUE(got[i] == expected[i])
          << copies[i].spec.Name()
          << (copies[i].orientation == Orientation::kColumn ? " column" : " row") << " of ["
          << x.rows << ", " << x.cols << "], " << backend->Name() << ": "
          << Where(got[i], expected[i], static_cast<int>(x.cols));
    }
  }
}

// The copies of a spec that a source allows: row, column or both.
std::vector<WantedOperand> CopiesOf(const OperandSpec& spec, int rows, int cols,
                                    const float* amax = nullptr) {
  std::vector<WantedOperand> copies;
  for (const Orientation orientation : {Orientation::kRow, Orientation::kColumn}) {
    if (Fits(spec, orientation, rows, cols)) copies.push_back({spec, orientation, amax});
  }
  return copies;
}

// Widths of whole strips, with a remainder of one block or one column, and too narrow for a strip
// or a tile.
TEST(Operand, AloneEqualsTheOneWithCodesInEveryFormatAndShape) {
  const auto backends = Backends({2});
  for (const auto& [rows, cols, padding] : {std::array{128, 512, 0},
                                            {256, 384, 0},
                                            {48, 272, 3},
                                            {128, 129, 1},
                                            {64, 33, 0},
                                            {37, 288, 16},
                                            {96, 31, 0},
                                            {50, 1040, 0}}) {
    PaddedSource source = NormalPadded(rows, cols, rows + cols, padding);
    for (OperandSpec spec : EverySpec()) {
      for (const int size : {0, 2, 16, 32, 128}) {
        if (size > 0 && spec.block.rows > 1) continue;
        spec.hadamard.size = size;
        const std::vector<WantedOperand> copies = CopiesOf(spec, rows, cols);
        if (copies.empty()) continue;
        for (const bool bf16 : {true, false}) ExpectSame(backends, source.Matrix(bf16), copies);
      }
    }
  }
}

// More rows and columns than one patch or task has, and outputs large enough to be written past the
// caches, with aligned rows and with unaligned ones.
TEST(Operand, AloneEqualsTheOneWithCodesInTensorsOfManyPatches) {
  const auto backends = Backends({2});
  OperandSpec row = OperandSpec::Of(Format::kNvfp4);
  OperandSpec column = row;
  column.hadamard.size = 16;
  OperandSpec tiles = row;
  tiles.block = {16, 16};
  for (const auto& [rows, cols] : {std::pair{1040, 1056}, {2064, 1040}, {32, 8448}}) {
    PaddedSource source = NormalPadded(rows, cols, 1);
    for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
      row.rounding = column.rounding = rounding;
      ExpectSame(backends, source.Matrix(true),
                 {{row, Orientation::kRow}, {column, Orientation::kColumn}});
    }
    ExpectSame(backends, source.Matrix(false), {{tiles, Orientation::kRow}});
  }
}

TEST(Operand, NonFiniteNumbersAreCountedAndRoundedAsWithCodes) {
  const auto backends = Backends({2});
  for (OperandSpec spec : EverySpec()) {
    for (const int size : {0, 16, 32}) {
      if (size > 0 && spec.block.rows > 1) continue;
      spec.hadamard.size = size;
      for (const float bad : {kNan, -kInf}) {
        PaddedSource source = NormalPadded(128, 256, 5);
        source.at(3, 5) = bad;
        source.at(100, 255) = bad;
        source.at(127, 100) = -bad;
        const float amax = 8.0f;
        ExpectSame(backends, source.Matrix(true), CopiesOf(spec, 128, 256));
        ExpectSame(backends, source.Matrix(bad > 0), CopiesOf(spec, 128, 256, &amax));
      }
    }
  }
}

// Magnitudes for which the short roundings would be wrong, alone and next to ordinary ones.
TEST(Operand, TheLargestAndSmallestMagnitudesEqualThoseWithCodes) {
  const auto backends = Backends({2});
  for (const int exponent : {-149, -140, -132, -128, -126, -123, -118, -112, -105, -101, -99,
                             -60,  60,   105,  107,  109,  111,  113,  120,  123,  125}) {
    for (const int every : {1, 7}) {
      PaddedSource source = NormalPadded(128, 256, 6);
      for (int row = 0; row < source.rows; ++row) {
        for (int col = 0; col < source.cols; ++col) {
          if ((row / 16 + col / 16) % every != 0) continue;
          source.at(row, col) = std::ldexp(source.at(row, col) / 4, exponent);
        }
      }
      for (OperandSpec spec : EverySpec()) {
        if (spec.block.rows > 16 || spec.format == Format::kFp8TensorE5m2) continue;
        for (const int size : {0, 16}) {
          if (size > 0 && (spec.block.rows > 1 || spec.format != Format::kNvfp4)) continue;
          spec.hadamard.size = size;
          ExpectSame(backends, source.Matrix(true), CopiesOf(spec, 128, 256));
          if (size == 0) ExpectSame(backends, source.Matrix(false), CopiesOf(spec, 128, 256));
        }
      }
    }
  }
}

// A given amax below the data's makes values saturate, one far above makes scales underflow.
TEST(Operand, AGivenAmaxHasTheSameEffectAsWithCodes) {
  const auto backends = Backends({2});
  PaddedSource source = NormalPadded(128, 256, 7);
  for (OperandSpec spec : EverySpec()) {
    for (const int size : {0, 16}) {
      if (size > 0 && spec.block.rows > 1) continue;
      spec.hadamard.size = size;
      for (const float amax :
           {0.0f, FLT_TRUE_MIN, 1e-30f, 0.25f, 1.5f, 60.0f, 1e6f, FLT_MAX, kInf}) {
        ExpectSame(backends, source.Matrix(true), CopiesOf(spec, 128, 256, &amax));
      }
    }
  }
}

// All BF16 numbers in blocks of two adjacent binades, with factors of many mantissas.
TEST(Operand, EveryBf16NumberIsRoundedAsWithCodes) {
  const auto backends = Backends({2});
  PaddedSource source(512, 256);
  for (int i = 0; i < 512 * 256; ++i) {
    // Columns of 512 numbers go through the patterns in order; rows through every 512th.
    const uint32_t pattern = static_cast<uint32_t>(i % 256 * 512 + i / 256) & 0xffffu;
    const float x = DecodeBf16(static_cast<uint16_t>(pattern));
    source.at(i / 256, i % 256) = std::fabs(x) < 1e30f ? x : 0.0f;
  }
  for (OperandSpec spec : EverySpec()) {
    if (spec.block.rows > 16) continue;
    ExpectSame(backends, source.Matrix(true), CopiesOf(spec, 512, 256));
  }
}

// Values of codes, the midpoints where rounding changes, and each 256th in between, with neighbours
// by the last FP32 bit and both signs.
template <class E>
std::vector<float> CriticalValues(uint32_t codes) {
  std::vector<float> values;
  for (uint32_t code = 0; code + 1 < codes; ++code) {
    const float low = E::template Decode<float>(code);
    const float high = E::template Decode<float>(code + 1);
    for (int part = 0; part<256; part += codes> 8 ? 32 : 1) {
      const float x = low + (high - low) * (static_cast<float>(part) / 256);
      for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, kInf)}) {
        values.push_back(y);
        values.push_back(-y);
      }
    }
  }
  return values;
}

// Blocks contain their element's largest value, which makes scales one, so that the values are
// rounded unscaled.
TEST(Operand, NeighboursOfTiesAndCodesAreRoundedAsWithCodes) {
  const auto backends = Backends({2});
  const std::vector<float> e2m1 = CriticalValues<E2M1>(8);
  const std::vector<float> e4m3 = CriticalValues<E4M3>(0x7f);
  const std::vector<float> e5m2 = CriticalValues<E5M2>(0x7c);
  const float amax = 2688;
  for (OperandSpec spec : EverySpec()) {
    const Element element = Info(spec.format).element;
    const std::vector<float>& values = element == Element::kE2M1   ? e2m1
                                       : element == Element::kE4M3 ? e4m3
                                                                   : e5m2;
    const float largest = element == Element::kE2M1   ? E2M1::Max()
                          : element == Element::kE4M3 ? E4M3::Max()
                                                      : E5M2::Max();
    PaddedSource source(128, 512);
    for (int i = 0; i < 128 * 512; ++i) {
      source.at(i / 512, i % 512) = (i / 512 + i) % 16 == 0 ? largest : values[i % values.size()];
    }
    const bool nvfp4 = spec.format == Format::kNvfp4;
    ExpectSame(backends, source.Matrix(false), CopiesOf(spec, 128, 512, nvfp4 ? &amax : nullptr));
  }
}

// The amax pass only transforms columns that could exceed the maximum so far. The largest
// transformed number is where the magnitudes are not the largest, or right after them, or first, or
// last.
TEST(Operand, TheLargestTransformedNumberIsFoundAtEveryPosition) {
  const auto backends = Backends({2});
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  spec.hadamard.size = 16;
  constexpr int kRows = 96, kCols = 80;
  for (const int tile : {0, 1, 3, 5}) {
    for (const int col : {0, 1, 31, 32, 63, 64, 79}) {
      PaddedSource source(kRows, kCols);
      std::mt19937_64 random(tile * 100 + col);
      for (int row = 0; row < kRows; ++row) {
        for (int k = 0; k < kCols; ++k) {
          source.at(row, k) = (random() % 2 == 0 ? 1.0f : -1.0f) * (1 + random() % 128 / 128.0f);
        }
      }
      // All the energy of a column in one output.
      for (int i = 0; i < 16; ++i) {
        source.at(16 * tile + i, col) = (kDefaultSigns.Bit(i) != 0 ? -1.75f : 1.75f);
      }
      float amax = 0;
      for (int row = 0; row < kRows; row += 16) {
        for (int k = 0; k < kCols; ++k) {
          float x[16];
          for (int i = 0; i < 16; ++i) x[i] = DecodeBf16(EncodeBf16(source.at(row + i, k)));
          HadamardBf16<float>(x, 16, 1, kDefaultSigns);
          for (const float y : x) amax = std::max(amax, std::fabs(y));
        }
      }
      EXPECT_EQ(amax, 7.0f);
      for (const auto& backend : backends) {
        const Result got =
            Quantized(*backend, source.Matrix(true), {{spec, Orientation::kColumn}}, false)[0];
        ASSERT_EQ(got.amax, amax) << backend->Name() << ", tile " << tile << ", column " << col;
      }
      ExpectSame(backends, source.Matrix(true), {{spec, Orientation::kColumn}});
    }
  }
}

// Element 2^36 starts the blocks of 16 whose number needs more than 32 bits.
TEST(Operand, RandomBitsFollowTheUnshardedIndexBeyond32Bits) {
  const auto backends = Backends({2});
  PaddedSource source = NormalPadded(48, 288, 8);
  OperandSpec spec = OperandSpec::Of(Format::kNvfp4);
  spec.rounding = Rounding::kStochastic;
  for (const int64_t line : {int64_t{16711935}, int64_t{16711900}, int64_t{1} << 40}) {
    // 257 blocks to a line: line 16711935 starts at block 2^32 - 1.
    ExpectSame(backends, source.Matrix(true), {{spec, Orientation::kRow}},
               {line, 112, 0, 257 * 16});
    for (const int size : {0, 16}) {
      OperandSpec column = spec;
      column.hadamard.size = size;
      ExpectSame(backends, source.Matrix(true), {{column, Orientation::kColumn}},
                 {112, line, 257 * 16, 0});
    }
  }
}

TEST(Operand, CopiesMadeTogetherEqualCopiesMadeAloneOnAnyNumberOfThreads) {
  PaddedSource source = NormalPadded(1024, 768, 9);
  OperandSpec row = OperandSpec::Of(Format::kNvfp4);
  for (const Rounding rounding : {Rounding::kNearest, Rounding::kStochastic}) {
    row.rounding = rounding;
    OperandSpec column = row;
    column.hadamard.size = 16;
    const WantedOperand both[] = {{row, Orientation::kRow}, {column, Orientation::kColumn}};
    for (const int threads : {1, 2, 5}) {
      const auto backend =
          *CpuBackend::Create({.threads = threads, .isa = cpu::SupportedIsas().back()});
      const auto together = Quantized(*backend, source.Matrix(true), {both[0], both[1]}, false);
      for (const int i : {0, 1}) {
        const auto alone = Quantized(*backend, source.Matrix(true), {both[i]}, false);
        ASSERT_TRUE(together[i] == alone[0]) << threads << " threads, copy " << i;
      }
    }
  }
}

}  // namespace
}  // namespace nibble
